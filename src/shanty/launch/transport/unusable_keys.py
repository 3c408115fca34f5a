"""Finds out, after a host has refused the user's keys, whether ssh could use them at all.

ssh passes over a key whose passphrase it may not ask for, and the host does not say that a
certificate has expired, so both look like a key that is not in authorized_keys.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from shanty.launch.transport.keys import keygen
from shanty.launch.transport.openssh import Route
from shanty.runtime.errors import ShantyError

_VALID = re.compile(r"Valid: from (\S+) to (\S+)")
_AGENT = 3.0  # seconds for the agent to list its keys


class Cause(NamedTuple):
    """Why the keys could not be used: parts of a `refusal.Refusal`."""

    code: str
    what: str
    fix: str
    command: str = ""


def cause(route: Route) -> Cause | None:
    """What is wrong here with the user's keys for a host; None if nothing is."""
    try:
        return _cause(route)
    except (ShantyError, OSError):
        return None


def _cause(route: Route) -> Cause | None:
    files = [path for path in _files(route, "identityfile") if path.is_file()]
    beside = [path.with_name(f"{path.name}-cert.pub") for path in files]
    for path in [*_files(route, "certificatefile"), *beside]:
        if path.is_file() and (state := _lapsed(path)):
            what = f"it does not accept your keys; your certificate {path} {state}"
            return Cause("certificate-expired", what, "get a new certificate")
    in_agent = _in_agent(route)
    for path in files:
        if not in_agent & set(_fingerprint(path)) and _is_locked(path):
            what = f"ssh could not use your key {path}, which has a passphrase"
            command = f"ssh-add {shlex.quote(str(path))}"
            return Cause("key-locked", what, "give the passphrase once to the agent", command)
    if not files and not in_agent:
        what = "you have no ssh key to offer it, neither in a file nor in an agent"
        command = f"ssh-keygen -t ed25519 && ssh-copy-id {shlex.quote(route.host.login)}"
        return Cause("key-refused", what, "make a key, and add it there", command)
    return None


def _files(route: Route, setting: str) -> Iterator[Path]:
    for name in route.settings.get(setting, "").splitlines():
        yield Path(name.strip('"')).expanduser()


def _lapsed(certificate: Path) -> str:
    """Says if a certificate is not valid now; "" if it is, or cannot be read."""
    found = _VALID.search(keygen("-L", "-f", str(certificate)).stdout)
    if found is None:
        return ""
    now, (begin, end) = datetime.now(), map(datetime.fromisoformat, found.groups())
    if now >= end:
        return f"expired on {end:%Y-%m-%d at %H:%M}"
    return f"is valid from {begin:%Y-%m-%d at %H:%M} only" if now < begin else ""


def _is_locked(key: Path) -> bool:
    return "incorrect passphrase" in keygen("-y", "-P", "", "-f", str(key)).stderr


def _fingerprint(key: Path) -> list[str]:
    return keygen("-l", "-f", str(key)).stdout.split()[1:2]


def _in_agent(route: Route) -> set[str]:
    """The fingerprints of the keys that ssh's agent has; none without an agent."""
    named = route.settings.get("identityagent", "SSH_AUTH_SOCK").strip('"')
    socket = os.environ.get("SSH_AUTH_SOCK", "") if named == "SSH_AUTH_SOCK" else named
    if socket in ("", "none"):
        return set()
    environ = {**os.environ, "SSH_AUTH_SOCK": str(Path(socket).expanduser())}
    try:
        done = subprocess.run(
            ["ssh-add", "-l"], env=environ, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_AGENT, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return {words[1] for words in map(str.split, done.stdout.splitlines()) if len(words) > 2}
