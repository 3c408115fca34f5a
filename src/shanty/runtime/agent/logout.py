"""What systemd-logind does to a run when its user logs out, and how to be spared."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import List, Mapping

_ASK = (
    "busctl",
    "get-property",
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
    "KillUserProcesses",
)
_SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "--")


def kills_at_logout(environ: Mapping[str, str]) -> bool:
    """True when logind ends all processes of a session with it (KillUserProcesses=yes)."""
    if not environ.get("XDG_SESSION_ID") or not shutil.which(_ASK[0], path=environ.get("PATH")):
        return False
    try:
        answer = subprocess.run(
            _ASK, capture_output=True, text=True, timeout=2, check=False, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == "b true"


def survivor_prefix(environ: Mapping[str, str]) -> List[str]:
    """What to put before a command that must outlive the session: nothing where all do."""
    if not kills_at_logout(environ) or not Path("/run/systemd/system").is_dir():
        return []
    return list(_SCOPE) if shutil.which(_SCOPE[0], path=environ.get("PATH")) else []


def session_is_gone(session: str, environ: Mapping[str, str]) -> bool:
    """True when logind no longer knows the session."""
    loginctl = shutil.which("loginctl", path=environ.get("PATH"))
    if not session or not loginctl:
        return False
    try:
        answer = subprocess.run(
            [loginctl, "show-session", session],
            capture_output=True,
            timeout=2,
            check=False,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode != 0
