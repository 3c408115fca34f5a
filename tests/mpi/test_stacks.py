"""`shanty stacks`: who is stuck where."""

from __future__ import annotations

import json
import time

from runs import wait_for

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
    assert "ranks 0-1:\n  it is no Python program, or has not come to its" in done.stdout
    shanty("stop", "last", "--kill")
    process.communicate(timeout=20)


def test_a_run_that_has_ended_has_no_stacks(shanty):
    shanty("run", "-n", 1, "true")
    done = shanty("stacks")
    assert done.returncode == 2
    assert "has ended" in done.stderr
