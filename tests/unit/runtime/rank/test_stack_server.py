"""Stacks of a Python process, which are read while its threads run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest

from runs import LONG, wait_for
from shanty.runtime import platform
from shanty.runtime.diagnosis import stacks
from shanty.runtime.diagnosis.stacks import StackRequest, answer
from shanty.runtime.rundir import RunDir

pytestmark = pytest.mark.skipif(not platform.LINUX, reason="Linux only")
REQUESTS = 1000 if LONG else 50
# What ranks may have, besides the Python of the tests.
OTHERS = ("python3.9", "python3.12", "python3.13", "python3.14")

RANK = """
import faulthandler, itertools, os, pathlib, sys, threading, time
sys.path.insert(0, sys.argv[1])
from progress_probe import ProgressProbe
from stack_server import StackServer

path, signals = sys.argv[2], [int(number) for number in sys.argv[3:5]]
faulthandler.register(signals[0], file=open(path + ".signal", "a"), all_threads=False)
StackServer(path).start()
probe = ProgressProbe(path + ".pulse", signals[1])

def busy():
    while True:
        [pathlib.Path("/a/b") / str(number) for number in range(50)]

def deep(depth):
    return depth and deep(depth - 1) or [pathlib.PurePath("x", "y") for _ in range(3)]

def wait():
    for function in (busy, busy):
        threading.Thread(target=function, daemon=True).start()
    time.sleep(300)

def work():
    threading.Thread(target=busy, daemon=True).start()
    while True:
        deep(50)

def keep():
    threading.Thread(target=busy, daemon=True).start()
    sum(itertools.repeat(0))

def close_and_keep():
    os.closerange(3, 100)
    files = [open(path + ".own", "w") for _ in range(20)]
    sum(itertools.repeat(0))

def keep_in_a_thread():
    threading.Thread(target=lambda: sum(itertools.repeat(0)), daemon=True).start()
    deep(5)

def fork():
    assert threading.active_count() == 1
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    time.sleep(300)

def deepest():
    sys.setrecursionlimit(5000)
    def sink(depth):
        sink(depth - 1) if depth else time.sleep(300)
    sink(3000)

print(flush=True)
{**globals()}[sys.argv[5]]()
"""


class Rank:
    """A process that is instrumented as a rank, without a run."""

    def __init__(self, folder: Path, what: str, python: str = sys.executable) -> None:
        self.run = RunDir(folder)
        self.run.stacks.mkdir()
        path = self.run.rank_stacks(0).with_suffix("")
        signals = (platform.STACKS_SIGNAL, platform.PROBE_SIGNAL)
        parts = Path(platform.__file__).parent / "rank"
        self.process = subprocess.Popen(
            [python, "-W", "error", "-c", RANK, *map(str, (parts, path, *signals)), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def stacks(self) -> dict[str, Any]:
        """Its answer to a request; an empty one if it does not come."""
        name = str(time.time_ns())
        request = StackRequest(self.run, name, {0: {self.process.pid}})
        while request.tick(time.monotonic()):
            time.sleep(0.002)
        return answer(self.run, 0, name) or {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it; it must still have been there, and have said nothing."""
        alive = self.process.poll() is None
        self.process.kill()
        _, errors = self.process.communicate()
        assert (alive, errors) == (True, b"")


def interpreter(name: str) -> str:
    """The path of a Python; "": of this one. Skips where there is none of that name."""
    found = shutil.which(name) if name else sys.executable
    if not found or subprocess.run([found, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"{name} not found")
    return found


def functions(answer: dict[str, Any], thread: int) -> list[str]:
    return [function for _, _, function in answer["threads"][thread]["frames"]]


@pytest.mark.parametrize(("python", "what"), [("", "wait"), *((each, "work") for each in OTHERS)])
def test_threads_that_run(tmp_path: Path, python: str, what: str) -> None:
    with Rank(tmp_path, what, interpreter(python)) as rank:
        wait_for(lambda: len(rank.stacks()["threads"]) == (3 if what == "wait" else 2))
        for _ in range(REQUESTS):
            found = rank.stacks()
            assert "note" not in found
            assert "busy" in functions(found, 0)
            assert what in functions(found, -1)
            assert functions(found, -1)[-1] == "<module>"
        assert sum(path.stat().st_size for path in rank.run.stacks.iterdir()) < 100_000


def test_the_interpreter_lock_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_LOCKED", 0.3)
    with Rank(tmp_path, "keep") as rank:
        wait_for(lambda: "note" in rank.stacks())
        found = rank.stacks()
        assert found["note"].startswith("only the main thread: the interpreter lock (GIL) was not")
        assert [functions(found, 0)] == [["keep", "<module>"]]
        assert found["threads"][0]["current"]
        os.kill(rank.process.pid, signal.SIGSTOP)
        wait_for(lambda: rank.stacks().get("error") == "it is stopped, as by SIGSTOP")


def test_a_script_that_has_closed_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written would go into a file of its own."""
    monkeypatch.setattr(stacks, "PATIENCE", 2.0)
    with Rank(tmp_path, "close_and_keep") as rank:
        wait_for(lambda: rank.stacks() == {})
        assert (rank.run.stacks / "rank-0.own").read_bytes() == b""


def test_the_main_thread_waits_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may execute Python the next moment: no signal for its stack is sent then."""
    monkeypatch.setattr(stacks, "PATIENCE", 2.0)
    with Rank(tmp_path, "keep_in_a_thread") as rank:
        wait_for(lambda: rank.stacks() == {})
        assert rank.run.rank_signal(0).read_bytes() == b""


@pytest.mark.parametrize("python", ["", *OTHERS])
def test_forks(tmp_path: Path, python: str) -> None:
    """Python 3.12 warns of a fork while there are other threads; the script has none."""
    with Rank(tmp_path, "fork", interpreter(python)) as rank:
        wait_for(lambda: functions(rank.stacks(), -1) == ["fork", "<module>"])


def test_a_stack_without_end(tmp_path: Path) -> None:
    with Rank(tmp_path, "deepest") as rank:
        wait_for(lambda: functions(rank.stacks(), -1) == ["sink"] * 100)
