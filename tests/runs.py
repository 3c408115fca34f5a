"""Drives real runs from tests: the program in a home of its own, waiting, looking for traces."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from shanty.runtime import platform
from shanty.runtime.cleanup import in_use
from shanty.runtime.rundir import RunDir, read_json

FLAVOURS = ("openmpi5", "openmpi4", "mpich", "intel")
LONG = bool(os.environ.get("SHANTY_TEST_LONG"))
WORKERS = Path(__file__).parent / "mpi" / "workers"


def examples(number: int) -> int:
    """How many cases Hypothesis tries: so many with LONG, else a quarter; each run tries others."""
    return number if LONG else number // 4


STARTED: Counter[str] = Counter()
"""How often this process has started what, by the first word of the command line."""


def mpi_folder() -> Path:
    """Where the tests find their MPIs, one folder a flavour."""
    return Path(os.environ.get("SHANTY_TEST_MPI", "~/.shanty/mpi")).expanduser()


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    """Each MPI in turn; Open MPI 5 is the one that came with shanty."""
    name: str = request.param
    if name != "openmpi5" and not (mpi_folder() / name).exists():
        pytest.skip(f"{name} is not installed in {mpi_folder()}")
    return name


@dataclass
class Shanty:
    """The program, with a home of its own."""

    home: Path
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "SHANTY_"))}
        return {**kept, "SHANTY_HOME": str(self.home), "PYTHONFAULTHANDLER": ""}

    def start(self, *words: str | Path, **options: object) -> subprocess.Popen[bytes]:
        """Start `shanty WORDS…` and come back at once."""
        STARTED[str(words[0])] += 1
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = {**self.environ, **options.pop("env", {})}  # type: ignore[dict-item]
        return subprocess.Popen(
            [sys.executable, "-m", "shanty", *map(str, words)],
            **{**pipes, "cwd": self.folder, "env": env, **options},  # type: ignore[call-overload]
        )

    def __call__(
        self, *words: str | Path, stdin: bytes = b"", timeout: float = 90, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run `shanty WORDS…` to its end."""
        process = self.start(*words, stdin=subprocess.PIPE, **options)
        try:
            out, err = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"hangs: {words}\n{out.decode()}\n{err.decode()}") from None
        return subprocess.CompletedProcess(
            process.args,
            process.returncode,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
        )

    def script(self, text: str, name: str = "script.py") -> Path:
        """Write a script into the workspace."""
        path = self.folder / name
        path.write_text(text)
        return path

    @property
    def last(self) -> RunDir:
        """The newest run."""
        return RunDir(sorted((self.home / "runs").iterdir())[-1])

    def status(self) -> dict[str, object]:
        """What the newest run's status file says."""
        try:
            return read_json(self.last.status) or {}
        except (FileNotFoundError, IndexError):  # no run yet
            return {}

    def agents(self) -> dict[str, int]:
        """The pids of the newest run's agents."""
        found = read_json(self.last.agents) or {}
        return {name: found[name]["pid"] for name in ("controller", "node_agent")}

    def sweep(self) -> None:
        """Remove what runs of this home have left in folders that all runs share."""
        for run in (self.home / "runs").glob("*"):
            name = run.name.partition("-")[2]
            for folder in (platform.SHARED_MEMORY, platform.scratch_root()):
                shutil.rmtree(Path(folder, name), ignore_errors=True)

    def alive(self) -> list[platform.Process]:
        """The processes of any run of this home."""
        found = []
        for entry in platform.processes().values():
            try:
                environ = Path(f"/proc/{entry.pid}/environ").read_bytes()
            except OSError:
                continue
            if f"SHANTY_HOME={self.home}".encode() in environ.split(b"\0"):
                found.append(entry)
        return found


def interruptible() -> None:
    """Before a program is started: it gets SIGINT, which it would ignore in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition: Callable[[], object], seconds: float = 30, what: str = "") -> None:
    """Wait until `condition` is true; AssertionError after `seconds`.

    A condition that takes long, as where it starts a program, leaves most of the time to others.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(min(max(0.02, 2 * (now - began)), 1.0))


def accuracy(output: str) -> float:
    """What examples/digits.py says that it reached."""
    found = re.search(r"test accuracy ([\d.]+)", output)
    assert found, output
    return float(found[1])


def vanish(paths: set[str], seconds: float = 10) -> None:
    """Wait until the paths are gone; what a living process holds is some other job's.

    Call it when no process of one's own is left.
    """

    def left() -> set[str]:
        found = (paths & traces()) - in_use()
        return found and found - _of_living_runs(found)

    try:
        wait_for(lambda: not left(), seconds)
    except AssertionError:
        raise AssertionError(f"after {seconds} s there are still {left()}") from None


def _of_living_runs(folders: set[str]) -> set[str]:
    """Those of the folders whose run some process knows by name."""
    known = b""
    for pid in platform.processes():
        for what in ("environ", "cmdline"):
            with suppress(OSError):
                known += Path(f"/proc/{pid}/{what}").read_bytes()
    return {folder for folder in folders if Path(folder).name.encode() in known}


def traces() -> set[str]:
    """What jobs leave on a machine: shared memory and session folders."""
    found = set()
    for folder, patterns in (
        ("/dev/shm", ("*",)),
        ("/tmp", ("ompi.*", "prte*", "hydra*", "mpiexec*")),
        (platform.scratch_root(), ("*",)),
    ):
        for pattern in patterns:
            found |= {str(path) for path in Path(folder).glob(pattern)}
    return found
