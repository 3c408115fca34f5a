"""Chooses the Python that runs a user's script."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shanty.launch.user_path import user_path
from shanty.runtime.errors import NotFoundError

_ASKING = 10.0  # seconds for an interpreter to say what it has
_FIND = "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if u.find_spec(n)])"


def choose(wanted: str | None, workspace: Path, environ: Mapping[str, str]) -> str:
    """Return the interpreter for a job, as an absolute path.

    `wanted` (--python) wins, a command or a path; then an active virtual environment, an
    active conda environment, the workspace's .venv, and last the Python that runs shanty.
    """
    if wanted:
        return _resolve(wanted, workspace, environ)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            candidate = Path(environ[variable], "bin", "python")
            if candidate.exists():
                return str(candidate)
    local = workspace / ".venv" / "bin" / "python"
    return str(local) if local.exists() else sys.executable


def _resolve(wanted: str, workspace: Path, environ: Mapping[str, str]) -> str:
    if os.sep in wanted:
        path = (workspace / user_path(wanted)).absolute()
        if path.is_dir():
            path = path / "bin" / "python"
        found = str(path) if os.access(path, os.X_OK) else None
    else:
        import shutil

        found = shutil.which(wanted, path=environ.get("PATH"))
    if not found:
        raise NotFoundError(
            f"Python not found: {wanted!r}",
            "--python names a command, an interpreter or a virtual environment",
            "leave it out to use the active environment",
        )
    return found


def check_places(python: str, places: Sequence[str], folder: str, env: Mapping[str, str]) -> None:
    """Raise NotFoundError where an interpreter lacks the package of one of --log-to's `places`.

    An interpreter that does not answer passes: the ranks report that at their first `shanty.log`.
    """
    import subprocess

    from shanty._sinks import PACKAGES

    wanted = [package for place in places for package in PACKAGES[place]]
    try:
        done = subprocess.run(
            [python, "-c", _FIND, *wanted],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASKING,
            cwd=folder, env=dict(env), check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return
    there = done.stdout.split()
    for place in places:
        if not any(package in there for package in PACKAGES[place]):
            package = PACKAGES[place][0]
            raise NotFoundError(
                f"--log-to {place} needs the package {package}",
                f"{python} does not have it",
                f"{python} -m pip install {package}",
            )
