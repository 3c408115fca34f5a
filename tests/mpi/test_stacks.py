"""`shanty stacks`: who is stuck where."""

from __future__ import annotations

import json
import time

import pytest

from runs import LONG, wait_for
from shanty.runtime import run_agents
from shanty.runtime.diagnosis.stacks import StackRequest, answer, probe_answers

STUCK = """
import time
import numpy
from mpi4py import MPI

def lost_in_thought():
    print("asleep", flush=True)
    time.sleep(300)

world = MPI.COMM_WORLD
value = numpy.zeros(1)
world.Barrier()
if world.rank == 2:
    lost_in_thought()
world.Allreduce(MPI.IN_PLACE, value)
"""


def test_one_rank_sleeps_while_the_others_wait(shanty, flavour):
    script = shanty.script(STUCK)
    process = shanty.start("run", "--mpi", flavour, "-n", 4, "--oversubscribe", script)
    wait_for(
        lambda: (
            shanty.status()
            and shanty.last.rank_log(2).exists()
            and b"asleep" in shanty.last.rank_log(2).read_bytes()
        )
    )
    deadline = time.monotonic() + 20
    while True:  # the others need a moment to get into the call
        done = shanty("stacks", "last")
        assert done.returncode == 0, done.stderr
        first, _, second = done.stdout.partition("\n\n")
        if "ranks 0-1, 3:" in second or time.monotonic() > deadline:
            break
    assert first.startswith("rank 2:\n  lost_in_thought")
    assert "script.py:8" in first
    assert second.startswith("ranks 0-1, 3:\n  MPI_Allreduce\n  <module>")
    assert "script.py:15" in second
    assert "shanty/runtime" not in done.stdout
    answers = json.loads(shanty("stacks", "--json", "last").stdout)
    assert [answer["rank"] for answer in answers] == [0, 1, 2, 3]
    assert shanty("stop", "last", "--kill").returncode == 0
    process.communicate(timeout=20)


BUSY = """
import itertools, pathlib, threading
from mpi4py import MPI

def busy():
    while True:
        [pathlib.Path("/a/b") / str(number) for number in range(50)]

def deep(depth):
    return depth and deep(depth - 1) or [pathlib.PurePath("x", "y") for _ in range(3)]

def busy_and_deep():
    while True:
        deep(50)

def keeps_the_lock():
    sum(itertools.repeat(0))

for work in (busy, busy_and_deep):
    threading.Thread(target=work, daemon=True).start()
print("up", flush=True)
if MPI.COMM_WORLD.rank == 0:
    MPI.COMM_WORLD.recv(source=1)
while not pathlib.Path("go").exists():
    sorted(range(100))
keeps_the_lock()
"""
REQUESTS = 10_000 if LONG else 50


@pytest.mark.timeout(900)  # in the long form
def test_requests_of_busy_ranks(shanty):
    """Threads that execute Python all the time, as the main thread does, or waits in MPI."""
    # Without the watchdog, whose own requests would come between these after a minute.
    line = ("run", "-n", 2, "--oversubscribe", "--stall-after", "off", shanty.script(BUSY))
    process = shanty.start(*line)
    wait_for(lambda: shanty.status().get("joined") == 2)
    run = shanty.last
    wait_for(lambda: [b"up" in log.read_bytes() for log in run.rank_logs().values()] == [True] * 2)
    pids = {rank: {probe_answers(run, rank)[0]} for rank in (0, 1)}
    for number in range(REQUESTS):  # as the node agent makes them
        request = StackRequest(run, str(number), pids)
        wait_for(lambda request=request: not request.tick(time.monotonic()))
        found = [answer(run, rank, str(number)) for rank in (0, 1)]
        assert [len(each.get("threads", ())) for each in found] == [3, 3], (number, found)
    assert all(run.rank_stacks(rank).stat().st_size < 20_000 for rank in (0, 1))
    reply = run_agents.ask(run, {"kind": "stacks"})
    first, second = sorted(reply["stacks"], key=lambda each: each["rank"])
    assert first["threads"][-1]["frames"][0][1:] == [23, "<module>"]
    for reply in (first, second):
        functions = [[frame[2] for frame in thread["frames"]] for thread in reply["threads"]]
        assert "busy" in functions[0] + functions[1]
        assert "busy_and_deep" in functions[0] + functions[1]
    (shanty.folder / "go").touch()

    def only_main() -> bool:
        text = shanty("stacks", "--threads").stdout.partition("rank 1:\n")[2]
        lines = text.partition("\n\n")[0].splitlines()
        return (
            len(lines) == 3
            and lines[0].startswith("  keeps_the_lock ")
            and lines[2]
            == ("  (only the main thread: the interpreter lock (GIL) was not free for 1 s)")
        )

    wait_for(only_main)
    assert shanty("stop", "last", "--kill").returncode == 0
    process.communicate(timeout=20)


SLOW_TO_START = """
import os, time
from pathlib import Path
if os.environ["RANK"] == "0":
    os._exit(0)
time.sleep(300)
"""


def test_ranks_that_are_not_there_are_named(shanty):
    """Before the launcher has started them, and once they have ended."""
    line = "while [ ! -e go ]; do sleep 0.1; done; exec mpirun -n 2 python script.py"
    shanty.script(SLOW_TO_START)
    process = shanty.start("run", "-n", 2, "--raw", "bash", "-c", line)
    wait_for(lambda: shanty.status().get("state") == "starting")
    done = shanty("stacks")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "no rank has started yet" in done.stderr
    (shanty.folder / "go").touch()
    wait_for(lambda: shanty.status().get("up") == 2)
    wait_for(lambda: "rank 0:\n  it has ended\n" in shanty("stacks").stdout)
    assert shanty("stop", "last", "--kill").returncode == 0
    process.communicate(timeout=20)


def test_programs_that_are_no_python(shanty):
    process = shanty.start("run", "-n", 2, "sleep", "100")
    wait_for(lambda: shanty.status().get("up") == 2)
    done = shanty("stacks")
    assert "ranks 0-1:\n  it is not a Python program, or has not reached its" in done.stdout
    shanty("stop", "last", "--kill")
    process.communicate(timeout=20)


def test_a_run_that_has_ended_has_no_stacks(shanty):
    shanty("run", "-n", 1, "true")
    done = shanty("stacks")
    assert done.returncode == 2
    assert "has ended" in done.stderr
