"""The queue for machines, on this machine: order, stops, and what is killed on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from runs import LONG, Shanty, wait_for
from shanty.runtime.rundir import RunDir, read_json, read_lines

pytestmark = [pytest.mark.mpi, pytest.mark.xdist_group("machines")]

SCHEDULER = "shanty.launch.scheduler.scheduler"
SCRIPT = """
import pathlib, sys, time
print("begins", flush=True)
while sys.argv[1:] and not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


class Queue:
    """One machine, this one, and runs that wait for it."""

    def __init__(self, shanty: Shanty) -> None:
        self.shanty = shanty
        shanty.script(SCRIPT)
        added = shanty("machines", "add", "here", "--on", "local")
        assert added.returncode == 0, added.stderr

    def submit(self, *words: str, gate: str = "") -> RunDir:
        options = ["-d", "-q", "-n", "1", "--machines", "here", *words]
        done = self.shanty("run", *options, "script.py", *filter(None, [gate]))
        assert done.returncode == 0, done.stderr
        return RunDir(self.shanty.home / "runs" / done.stdout.strip())

    def open(self, gate: str) -> None:
        (self.shanty.folder / gate).touch()

    def until(self, run: RunDir, state: str) -> None:
        wait_for(lambda: status(run)["state"] == state, 60, f"{state}: {status(run)}")

    def processes(self, module: str) -> list[int]:
        """The processes of this home that run a module of the queue."""
        words = f"\0{module}\0".encode()
        return [
            each.pid
            for each in self.shanty.alive()
            if words in Path(f"/proc/{each.pid}/cmdline").read_bytes()
        ]


def status(run: RunDir) -> dict[str, Any]:
    return read_json(run.status) or {}


def begun(run: RunDir) -> float:
    """When the controller came up."""
    return float(next(each["time"] for each in read_lines(run.events)))


@pytest.fixture
def queue(shanty: Shanty) -> Queue:
    return Queue(shanty)


def test_they_wait_in_a_queue(queue: Queue) -> None:
    first = queue.submit(gate="first")
    queue.until(first, "running")
    later = [queue.submit("--priority", text) for text in ("0", "5", "0")]
    wait_for(lambda: "for machines: 1 of here (0 of 1 free)" in status(later[1])["reason"])
    wait_for(lambda: "2 runs wait before it" in status(later[2])["reason"])
    listed = queue.shanty("ps")
    assert f"{later[0].id} waits: for machines" in listed.stdout
    shown = queue.shanty("machines", "show", "here")
    assert first.id in shown.stdout
    waiting = queue.submit()
    stopped = queue.shanty("stop", waiting.id)
    assert stopped.returncode == 0, stopped.stderr
    assert status(waiting)["state"] == "stopped"
    queue.open("first")
    for run in (first, *later):
        queue.until(run, "succeeded")
    assert not waiting.rank_log(0).exists()
    assert begun(later[1]) < begun(later[0]) < begun(later[2])
    assert all(run.rank_log(0).read_bytes().count(b"begins") == 1 for run in later)
    wait_for(lambda: not queue.processes(SCHEDULER), 20, "the scheduler stays for ever")


def test_who_shares(queue: Queue) -> None:
    """Runs outside of the queue count; a run that does not share waits for all others; a run whose
    type is removed fails."""
    outside = queue.shanty.start("run", "-q", "-n", "1", "script.py", "outside")
    try:
        wait_for(lambda: queue.shanty.status().get("state") == "running")
        sharing = queue.submit("--share", gate="sharing")
        wait_for(lambda: "0 of 1 free" in status(sharing)["reason"])
        queue.open("outside")
        queue.until(sharing, "running")
        alone = queue.submit(gate="alone")
        wait_for(lambda: "0 of 1 free" in status(alone)["reason"])
        beside = queue.submit("--share")
        queue.open("sharing")
        queue.until(alone, "running")
        wait_for(lambda: "0 of 1 free" in status(beside)["reason"])
        queue.shanty("machines", "rm", "here")
        queue.until(beside, "failed")
        assert "machine type 'here' not found" in status(beside)["failure"]["what"]
        queue.open("alone")
        queue.until(alone, "succeeded")
    finally:
        queue.open("outside")
        outside.communicate(timeout=30)


@pytest.mark.parametrize("module", [SCHEDULER, "shanty.launch.scheduler.starter"])
def test_what_serves_the_queue_is_killed(queue: Queue, module: str) -> None:
    """At every stage that can be caught: each run is started once all the same."""
    for _ in range(6 if LONG else 2):
        run = queue.submit()
        wait_for(lambda: queue.processes(module) or status(run)["state"] == "succeeded", 30)  # noqa: B023
        for pid in queue.processes(module):
            os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda: queue.shanty("ps").returncode == 0 and status(run)["state"] == "succeeded",  # noqa: B023
            60,
            str(status(run)),
        )
        assert run.rank_log(0).read_bytes().count(b"begins") == 1


def test_the_environment_of_the_command(queue: Queue) -> None:
    """Ranks have that of the shell in which the run was made, and nothing keeps it."""
    queue.shanty.script("import os; print(os.environ['OF_THE_SHELL'])")
    first = queue.shanty(
        "run", "-q", "-n", "1", "--machines", "here", "script.py", env={"OF_THE_SHELL": "it"}
    )
    assert first.stdout.strip() == "it", first.stderr
    assert not list(queue.shanty.last.path.glob("environ*"))


def test_what_cannot_be(queue: Queue) -> None:
    few = queue.shanty("run", "--machines", "here:2", "script.py")
    assert few.returncode == 2
    assert "here has 1" in few.stderr
    unknown = queue.shanty("run", "--machines", "there", "script.py")
    assert unknown.returncode == 66
    assert "known are here" in unknown.stderr
    assert not list((queue.shanty.home / "runs").glob("*"))


def test_the_command_is_killed(queue: Queue) -> None:
    """Whoever has got an id has a run."""
    process = queue.shanty.start("run", "--machines", "here", "-n", "1", "script.py", "gate")
    wait_for(lambda: queue.shanty.status().get("state") == "running", 60)
    process.kill()
    process.communicate()
    queue.open("gate")
    queue.until(queue.shanty.last, "succeeded")
