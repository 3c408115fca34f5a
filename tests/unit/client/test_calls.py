"""Calls before a run begins: their options, and their folders."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

import shanty
from runs import wait_for
from shanty.client import calls
from shanty.client.context import Context
from shanty.client.runs import LogLine, Run
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.rundir import RunDir
from shanty.sdk import tasks
from shanty.tasks import call

SOURCE = Path(__file__).parents[3] / "src"


def train(x: int = 1) -> int:
    return x


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("SHANTY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retries": -1}, "retries=-1 makes no sense"),
        ({"retries": "many"}, "retries='many' makes no sense"),
        ({"memory": "x2"}, 'add memory_per_rank="4G"'),
        ({"memory": "2", "memory_per_rank": "1G"}, "memory='2' makes no sense"),
        ({"memory": 2, "memory_per_rank": "1G"}, "memory=2 makes no sense"),
        ({"memory": "x1", "memory_per_rank": "1G"}, "memory='x1' makes no sense"),
    ],
)
def test_options_that_make_no_sense(home: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        shanty.task(**options)(train).submit()
    assert words in str(raised.value)
    assert [*(home / "cache" / "calls").glob("*")] == []
    assert not (home / "runs").exists()


def test_submit_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="list of words") as raised:
        shanty.submit("train.py", args="--epochs 3")
    assert "args=['--epochs', '3']" in str(raised.value)
    with pytest.raises(NotFoundError, match=r"none\.py"):
        shanty.submit("none.py")
    with pytest.raises(NotFoundError):
        shanty.find("nothing")
    assert shanty.runs() == []


def test_a_home_that_takes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("a file in its place")
    with pytest.raises(StorageError, match="SHANTY_HOME"):
        shanty.task(train).submit()
    home.unlink()

    def full(*_args: Any, **_more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(call, "write", full)
    with pytest.raises(StorageError, match="free some space"):
        shanty.task(train).submit()
    assert [*(home / "cache" / "calls").iterdir()] == []


def test_a_grace_that_is_no_number(home: Path) -> None:
    """Where it is asked for: the run's agents would end by it."""
    run = Run(Context(dict(os.environ)), RunDir(home / "runs" / "20260101-000000-abcd"))
    with pytest.raises(ValueError, match="soon"):
        run.stop("soon")  # type: ignore[arg-type]


def test_the_folder_that_one_is_in_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for call_of in (shanty.task(train).submit, lambda: shanty.submit(["true"])):
        with pytest.raises(NotFoundError, match="no longer exists"):
            call_of()
    monkeypatch.chdir(tmp_path)


def test_a_run_that_was_deleted(home: Path) -> None:
    run = Run(Context(dict(os.environ)), RunDir(home / "runs" / "20260101-000000-abcd"))
    for ask in (run.wait, run.value, run.metrics, lambda: run.state):
        with pytest.raises(NotFoundError, match="20260101-000000-abcd has been deleted"):
            ask()
    assert repr(run) == "<run 20260101-000000-abcd deleted>"


def test_letters_that_a_terminal_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    calls.printed(cast(Run, None), [LogLine(0, "grün", "stdout", 0.0)])
    assert terminal.buffer.getvalue() == b"[0] gr\\xfcn\n"  # type: ignore[attr-defined]


def test_a_program_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was started by a desktop."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    here = Context(dict(os.environ))
    here.progress("connects")
    assert not here.targets.describe([])
    calls.printed(cast(Run, None), [LogLine(0, "text", "stdout", 0.0)])


HOLD = """
import sys, time
from pathlib import Path
from shanty.client import calls
print(calls._folder(Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


def test_folders_of_callers_that_are_gone_are_removed(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, home],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert process.stdout
    theirs = Path(process.stdout.readline().strip())
    ours = calls._folder(home)
    assert theirs.is_dir()  # it is alive
    process.kill()
    process.wait()
    process.stdout.close()
    foreign = theirs.parent / "00000000-1-2-abc"  # another host's, on a shared disk
    foreign.mkdir()
    wait_for(lambda: calls._folder(home) and not theirs.exists(), 10)
    assert ours.is_dir()
    assert foreign.is_dir()
    os.utime(foreign, (1, time.time() - 100_000))
    calls._folder(home)
    assert not foreign.exists()


FORK = """
import os, sys
from shanty.client import calls
from shanty.client.future import Future

calls._starting.add(future := Future())  # a call whose run has not begun
pid = os.fork()
if pid == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
future.fill(lambda: None)
"""


def test_a_child_does_not_wait_for_calls_of_its_parent() -> None:
    """As those of multiprocessing: the thread that makes the call is not in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORK], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.communicate(timeout=20)[0] == "7\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_where_a_map_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shanty.runtime.platform.usable_cores", lambda: 8)
    task = shanty.task(train)
    assert tasks._places(task.with_options(ranks=1)) == [None] * 8
    assert tasks._places(task.with_options(ranks=3)) == [None] * 2
    assert tasks._places(task) == [None]
    three = task.with_options(ranks=2, on="a,b,c", ranks_per_host=1)
    assert tasks._places(three) == ["a,b"]
    assert tasks._places(three.with_options(ranks=1)) == ["a", "b", "c"]
    assert tasks._places(three.with_options(ranks=9)) == [None]
    assert set(tasks._places(task.with_options(on="slurm:login"))) == {None}
    with pytest.raises(UsageError, match="at_once"):
        task.map([1], at_once=0)
    assert task.map([]) == []
