"""Scripts that call tasks, as a user's: each in a workspace, with modules here and elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launches import WORKERS, checks

SCRIPT = "sdk_checks.py"
NAMES = [name.removeprefix("check_") for name in checks(SCRIPT)]
SHORT = ("value", "exception_of_main", "cancel")  # where time is short

_BESIDE = """
import shanty


class Thing:
    pass


class TroubleError(Exception):
    def __init__(self, *args):
        super().__init__(*args)
        self.where = "beside"


def plus_one(x):
    return x + 1


@shanty.task(ranks=2)
def as_task(x):
    return plus_one(x) + 99


def thing():
    return Thing()


def fails():
    raise TroubleError("deep trouble")
"""
_FAR = """
BASE = 42


class Far:
    pass


class FarError(Exception):
    pass


def answer(x):
    return BASE + x


def thing():
    return Far()


def fails():
    raise FarError("far")
"""


def selected(request: pytest.FixtureRequest) -> list[str]:
    """The checks of which this session has a test in the file: the others are not done."""
    found = set()
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path:
            found.add(item.callspec.params.get("name") if hasattr(item, "callspec") else None)
    return [name for name in NAMES if name in found]


def workspace(folder: Path) -> Path:
    """Fill a workspace with the script of the checks and its module; PYTHONPATH for the other."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(WORKERS / SCRIPT, folder / "main.py")
    (folder / "beside.py").write_text(_BESIDE)
    far = folder.with_name(f"{folder.name}-far")
    far.mkdir(exist_ok=True)
    (far / "far_away.py").write_text(_FAR)
    return far


def check(
    folder: Path,
    environ: Mapping[str, str],
    options: Mapping[str, Any],
    names: Sequence[str] = (),
    timeout: float = 170,
) -> str:
    """Do the checks from a workspace, with those options for all tasks; what was written."""
    far = workspace(folder)
    scratch = folder.with_name(f"{folder.name}-scratch")
    scratch.mkdir(exist_ok=True)
    env = {
        **environ,
        "SDK_OPTIONS": json.dumps(options),
        "SDK_SCRATCH": str(scratch),
        "PYTHONPATH": os.pathsep.join([str(far), *filter(None, [environ.get("PYTHONPATH", "")])]),
        "PYTHONFAULTHANDLER": "1",
    }
    out = folder.with_name(f"{folder.name}-out")
    with out.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "main.py", *names],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
        try:
            process.wait(timeout)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return out.read_text(errors="replace")


def started(folder: Path, environ: Mapping[str, str], *words: object) -> subprocess.Popen[str]:
    """Start a script of a folder that calls tasks; Ctrl-C ends it, as at a terminal."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=folder, env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def up(runs: Iterable[Path]) -> int:
    """How many ranks of these runs have said that they are up."""
    logs = (log for run in runs for log in run.glob("logs/rank-*"))
    return sum(b"up" in log.read_bytes() for log in logs)


def out(process: subprocess.Popen[str], timeout: float = 150) -> str:
    """What a script that calls tasks writes; it has to end well."""
    try:
        text, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        text, err = process.communicate()
        raise AssertionError(f"hangs\n{text}\n{err}") from None
    assert process.returncode == 0, err
    return text


def passed(output: str, name: str) -> None:
    """The check was passed; shows what was written where it was not."""
    if not re.search(rf"^ok {name}\b", output, re.MULTILINE):
        pytest.fail(output[-20000:])
