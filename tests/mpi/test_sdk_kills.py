"""Whoever calls a task is killed, or pressed Ctrl-C, at each stage: the run goes on, or never was.

And nothing is left of it: no process, no file in /tmp and /dev/shm, no folder of the call.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launches import LONG
from runs import Shanty, wait_for
from sdk_runs import out, started
from shanty.runtime.rundir import RunDir

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

CALL = """
import os, pathlib, sys, time
import shanty

here = pathlib.Path(sys.argv[1])

class Slow:
    def __reduce__(self):
        if "pickling" in sys.argv:
            (here / "pickling").touch()
            time.sleep(60)
        return str, ("value",)

@shanty.task(ranks=2, oversubscribe=True)
def work(folder, what):
    (folder / f"up-{shanty.rank()}").touch()
    while not (folder / "end").exists():
        time.sleep(0.02)
    return what

if __name__ == "__main__":
    if "submit" in sys.argv:
        future = work.submit(here, Slow())
        future.run
        (here / "begun").touch()
        print(future.result())
    elif "map" in sys.argv:
        print(work.with_options(ranks=1).map([here] * 3, [Slow()] * 3))
    else:
        print(work(here, Slow()))
"""


@pytest.fixture
def calls(shanty: Shanty) -> Callable[..., subprocess.Popen[str]]:
    """`calls("submit")` starts a script that calls a task."""
    script = shanty.script(CALL)

    def start(*words: str) -> subprocess.Popen[str]:
        return started(shanty.folder, shanty.environ, script, shanty.folder, *words)

    return start


def up(folder: Path) -> bool:
    return all((folder / f"up-{rank}").exists() for rank in range(2))


def any_run(shanty: Shanty, name: str) -> bool:
    return bool([*(shanty.home / "runs").glob(f"*/{name}")])


def shown(shanty: Shanty, run: RunDir) -> dict[str, Any]:
    """What `shanty ps` says of a run."""
    lines = shanty("ps", "--all", "--json").stdout.splitlines()
    return next(each for each in map(json.loads, lines) if each["id"] == run.id)


def left_by_calls(shanty: Shanty) -> list[Path]:
    """What is in the folder of calls after somebody has called once more."""
    (shanty.folder / "end").touch()
    again = started(shanty.folder, shanty.environ, "script.py", shanty.folder)
    assert out(again, 60) == "value\n"
    return [*(shanty.home / "cache" / "calls").iterdir()]


def test_killed_while_it_pickles(
    shanty: Shanty, calls: Callable[..., subprocess.Popen[str]]
) -> None:
    process = calls("pickling")
    wait_for((shanty.folder / "pickling").exists, 30)
    process.kill()
    process.communicate()
    assert not any_run(shanty, "job.json")
    assert left_by_calls(shanty) == []


@LONG
@pytest.mark.parametrize("how", ["shown", "submit"])
@pytest.mark.parametrize("stage", ["inputs", "job.json", "plan.json", "agents.json", "up"])
def test_killed_while_it_starts_or_waits(
    shanty: Shanty, calls: Callable[..., subprocess.Popen[str]], how: str, stage: str
) -> None:
    """Before the agents are started there is no run, or one that is LOST; from then on it goes on.

    The value is there for whoever comes later.
    """
    process = calls(how)
    if stage == "up":
        wait_for(lambda: up(shanty.folder), 30)
    else:
        while not any_run(shanty, stage) and process.poll() is None:
            pass  # the stage is short
    process.kill()
    process.communicate()
    runs = [RunDir(path) for path in (shanty.home / "runs").iterdir()]
    if stage in ("agents.json", "up"):
        wait_for(lambda: up(shanty.folder), 30)
    (shanty.folder / "end").touch()
    for run in runs:
        wait_for(lambda run=run: shown(shanty, run)["ended"] is not None, 60, "it does not end")
        state = shown(shanty, run)["state"]
        assert state == "succeeded" or (stage not in ("agents.json", "up") and state == "lost")
        assert (run.results / "value-0.pickle").exists() == (state == "succeeded")
    assert left_by_calls(shanty) == []


def interrupted(shanty: Shanty, process: subprocess.Popen[str]) -> str:
    """What a caller says at Ctrl-C; its runs are stopped, and nothing is left."""
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), err
    assert said == ""
    for path in (shanty.home / "runs").iterdir():
        assert '"stopped"' in (path / "status.json").read_text()
    assert left_by_calls(shanty) == []
    return err


@pytest.mark.parametrize("how", ["shown", pytest.param("submit", marks=LONG)])
def test_interrupted(shanty: Shanty, calls: Callable[..., subprocess.Popen[str]], how: str) -> None:
    """Ctrl-C stops the run, and the script ends as scripts do."""
    process = calls(how)
    wait_for(lambda: up(shanty.folder), 30)
    if how == "submit":
        wait_for((shanty.folder / "begun").exists, 30)
    assert "KeyboardInterrupt" in interrupted(shanty, process)


@LONG
def test_a_map_is_interrupted(shanty: Shanty, calls: Callable[..., subprocess.Popen[str]]) -> None:
    process = calls("map")
    wait_for((shanty.folder / "up-0").exists, 30)
    interrupted(shanty, process)


@LONG
@pytest.mark.parametrize("stage", ["inputs", "job.json", "agents.json"])
def test_interrupted_while_it_starts(
    shanty: Shanty, calls: Callable[..., subprocess.Popen[str]], stage: str
) -> None:
    """There is no run then, or one that was stopped."""
    process = calls("shown")
    while not any_run(shanty, stage) and process.poll() is None:
        pass
    interrupted(shanty, process)


@LONG
def test_two_callers_at_once(shanty: Shanty, calls: Callable[..., subprocess.Popen[str]]) -> None:
    """The one is killed, the other gets its value."""
    first, second = calls("submit"), calls("shown")
    wait_for(lambda: len([*(shanty.home / "runs").glob("*/agents.json")]) == 2, 60)
    first.kill()
    first.communicate()
    (shanty.folder / "end").touch()
    assert out(second, 60) == "value\n"
    for path in (shanty.home / "runs").iterdir():
        wait_for(lambda path=path: '"succeeded"' in (path / "status.json").read_text(), 60)
    assert left_by_calls(shanty) == []
