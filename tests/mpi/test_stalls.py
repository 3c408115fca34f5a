"""Runs that make no progress: who is the straggler, what comes of it, no alarm without need."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

import environments
from installations import compiled
from launches import LONG
from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.errors import STALL_EXIT
from shanty.runtime.mpi.processes import is_launchers
from shanty.runtime.rundir import read_json, read_lines

pytestmark = pytest.mark.sampled
AFTER = 2  # seconds; a user's bound is a minute
HEAD = """
import fcntl, os, sys, time
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
value = numpy.zeros(1)

def train():
    while True:
        pass

def save():
    with open("lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

world.Barrier()
"""
ENDLESS = HEAD + "if world.rank == 2: train()\nworld.Allreduce(MPI.IN_PLACE, value)\n"
ON_A_LOCK = HEAD + "if world.rank == 1: save()\nworld.Allreduce(MPI.IN_PLACE, value)\n"
OTHER_CALL = HEAD + (
    "if world.rank == 1: world.Bcast(value, 1 - world.rank)\n"
    "else: world.Allreduce(MPI.IN_PLACE, value)\n"
)
LEFT_THE_LOOP = HEAD + (
    "for step in range(3 if world.rank == 1 else 4):\n    world.Allreduce(MPI.IN_PLACE, value)\n"
)
ASLEEP = HEAD + "if world.rank == 1: time.sleep(300)\nworld.Allreduce(MPI.IN_PLACE, value)\n"
LOADER = """
import time
import torch
from mpi4py import MPI

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(300)

def fetch():
    for _ in torch.utils.data.DataLoader(Slow(), num_workers=1):
        pass

if __name__ == "__main__":
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 1:
        fetch()
    MPI.COMM_WORLD.allreduce(1)
"""
GLOO = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
import mpi4py.MPI
if dist.get_rank() == 1:
    while True:
        pass
dist.all_reduce(value)
"""
RECEIVE = """
#include <mpi.h>
int partner(int rank) { int value; MPI_Status s;
    MPI_Recv(&value, 1, MPI_INT, 1 - rank, 7, MPI_COMM_WORLD, &s); return value; }
volatile long turns;
void spin(void) { for (;;) turns++; }
int main(int argc, char **argv) {
    int rank; MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) spin();
    return partner(rank); }
"""
C_LOOP = """
#include <mpi.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    double end = MPI_Wtime() + 5, sum = 0, all = 0;
    for (int step = 0, go = 1; go; step++) {
        int more = MPI_Wtime() < end;
        sum += all / (step + 1);
        MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (step % 64 == 0) MPI_Allreduce(&more, &go, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    }
    MPI_Finalize(); return 0; }
"""
BY_METHODS = """
end, go = time.monotonic() + 5, numpy.ones(1)
while go[0]:
    go[0] = time.monotonic() < end
    world.Allreduce(MPI.IN_PLACE, go, MPI.MIN)
"""  # of numpy's arrays
SILENT = {
    "a loop of allreduces": """
end = time.monotonic() + 5
while world.allreduce(time.monotonic() < end, MPI.LAND):
    pass
""",
    "all asleep": "time.sleep(5)\nworld.Barrier()\n",
    "all compute": """
end = time.monotonic() + 5
while time.monotonic() < end:
    numpy.linalg.svd(numpy.ones((600, 600)))
world.Barrier()
""",
    "one works, and speaks": """
if world.rank == 1:
    for step in range(10):
        time.sleep(0.5)
        print("step", step, flush=True)
world.Barrier()
""",
    "one works, and logs": """
import shanty
if world.rank == 1:
    for step in range(10):
        time.sleep(0.5)
        shanty.log(step=step)
world.Barrier()
""",
    "one waits for less than the bound at a time": """
for step in range(8):
    if world.rank == 1:
        time.sleep(0.8)
    world.Barrier()
""",
}


def stalled(shanty, *words, seconds=40, ranks=2):
    """Run to the stall, with --on-stall stop; what the program said."""
    done = shanty(
        *("run", "-n", ranks, "--oversubscribe", "--stall-after", AFTER, "--on-stall", "stop"),
        *words,
        timeout=seconds,
    )
    assert done.returncode == STALL_EXIT, done.stderr
    assert done.stderr.count("no progress for") == 1
    assert done.stderr.count("\n  fix: ") == 1
    return done.stderr


def test_an_endless_loop(shanty, flavour):
    said = stalled(shanty, "--mpi", flavour, shanty.script(ENDLESS), ranks=3)
    first, *lines = said.splitlines()
    assert "no progress for 2 s: rank 2 on " in first
    assert re.search(
        r"is busy in train \(script\.py:(9|10)\), ranks 0, 1 wait in MPI_Allreduce", first
    )
    stacks = "\n".join(lines)
    odd, others = stacks.index("rank 2:  ← out of step"), stacks.index("ranks 0-1:")
    assert odd < others < stacks.index("MPI_Allreduce", others) < stacks.index("load ")
    status = shanty.status()
    assert status["failure"]["rank"] == 2
    assert status["stalled"] is None  # it has ended


def test_a_lock_on_a_file(shanty):
    import fcntl

    with (shanty.folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = stalled(shanty, shanty.script(ON_A_LOCK)).splitlines()[0]
    assert "rank 1 on " in said
    lock = shanty.folder / "lock"
    assert "is waiting in save (script.py:14) for the lock on" in said
    assert f"for the lock on {lock}, which process {os.getpid()} holds, rank 0 waits" in said


def test_another_collective(shanty):
    said = stalled(shanty, shanty.script(OTHER_CALL), ranks=3).splitlines()[0]
    assert re.search(r"rank 1 on \S+ is in MPI_Bcast at <module> \(script\.py:17\)", said)
    assert "ranks 0, 2 wait in MPI_Allreduce" in said


def test_a_rank_that_has_left_the_loop(shanty, flavour):
    said = stalled(shanty, "--mpi", flavour, shanty.script(LEFT_THE_LOOP), ranks=3)
    assert re.search(r"rank 1 on \S+ is (at its end, in MPI_Finalize|gone)", said.splitlines()[0])
    assert "the same number of steps" in said


def answers_given(shanty, rank):
    return int(shanty.last.rank_probe(rank).read_text().split()[1])


@pytest.mark.parametrize("place", ["outside MPI", "within MPI, while the run is watched"])
def test_a_stopped_rank(shanty, place):
    outside = ENDLESS.replace("rank == 2: train()", "rank == 1: print('on'); train()")
    within = HEAD + "if world.rank == 1: print('on')\n"
    within += "while True: world.Allreduce(MPI.IN_PLACE, value)\n"
    process = shanty.start(
        *("run", "-n", 2, "--oversubscribe"),
        *("--stall-after", AFTER, "--on-stall", "stop"),
        shanty.script(outside if place == "outside MPI" else within),
    )
    wait_for(lambda: shanty.status().get("joined") == 2 and shanty.last.rank_log(1).exists())
    wait_for(lambda: b"on" in shanty.last.rank_log(1).read_bytes())
    if place != "outside MPI":  # the node agent has seen it there, and asks it
        wait_for(lambda: answers_given(shanty, 1) > 1)
    os.kill(int(shanty.last.rank_probe(1).read_text().split()[0]), signal.SIGSTOP)
    _, said = process.communicate(timeout=40)
    assert process.returncode == STALL_EXIT
    assert re.search(rb"rank 1 on \S+ is stopped, as by SIGSTOP", said.splitlines()[0])


def test_a_launcher_that_is_stopped_as_soon_as_it_runs(shanty, flavour):
    """Its ranks may have started or not; those that have need it in MPI_Init."""
    go = shanty.home / "go"
    script = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n" + HEAD
    process = shanty.start(
        *("run", "--mpi", flavour, "-n", 2, "--oversubscribe"),
        *("--stall-after", AFTER, "--on-stall", "stop", shanty.script(script)),
    )
    theirs: list[int] = []

    def appears() -> bool:
        if not shanty.status():
            return False
        agent = (read_json(shanty.last.agents) or {}).get("node_agent", {}).get("pid", 0)
        children = platform.descendants(agent) if agent else []
        named = [(e.pid, platform.command(e.pid)) for e in children if e.parent == agent]
        theirs[:] = [pid for pid, words in named if words and is_launchers(Path(words[0]).name)]
        return bool(theirs)

    wait_for(appears)
    os.kill(theirs[0], signal.SIGSTOP)
    go.touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == STALL_EXIT, said
    first = said.decode().splitlines()[0]
    assert f"(pid {theirs[0]}) on host {os.uname().nodename} is stopped, as by SIGSTOP; " in first
    assert re.search(r"[01] of 2 ranks have started|ranks? \d.* waits? in MPI_Init", first)


def test_a_data_loader(shanty):
    pytest.importorskip("torch")
    said = stalled(shanty, shanty.script(LOADER)).splitlines()[0]
    assert re.search(
        r"rank 1 on \S+ is waiting in fetch \(script\.py:14\) for its DataLoader", said
    )


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_a_collective_of_torch(shanty, backend):
    pytest.importorskip("torch")
    script = GLOO.replace('"gloo"', f'"{backend}"').replace(
        "import torch\n", "import torch, shanty.torch\n"
    )
    said = stalled(shanty, shanty.script(script))
    assert re.search(r"rank 1 on \S+ is busy in <module> \(script\.py:1[12]\)", said)
    assert "rank 0 waits in torch all_reduce" in said


POLLS = """
import torch, shanty.torch as hvd
hvd.init()
if hvd.rank() == 0:
    hvd.reducescatter(torch.ones(4), name="a")
handle = hvd.allreduce_async(torch.ones(4), name="b")
while not hvd.poll(handle):
    pass
"""


def test_a_loop_that_polls_without_a_pause(shanty):
    """It keeps the other rank's communication going, which waits all the same."""
    pytest.importorskip("torch")
    said = stalled(shanty, shanty.script(POLLS))
    assert re.search(r"rank 1 on \S+ is busy in <module> \(script\.py:[78]\)", said)
    # By its stack, or as the request that it reports: what it does in between decides.
    assert re.search(r"rank 0 waits in (torch reducescatter|reducescatter\.a)", said)


def test_a_compiled_program(shanty, flavour):
    said = stalled(shanty, "--mpi", flavour, compiled(shanty.folder, flavour, RECEIVE))
    assert re.search(r"rank 1 on \S+ is busy in spin \(program\), rank 0 waits in MPI_Recv", said)
    stack = said.partition("rank 0:\n")[2]
    assert re.match(r"  MPI_Recv\n  partner +program\n  main +program\n", stack)


def test_a_stall_is_told_once_and_the_run_goes_on(shanty):
    script = HEAD + (
        "for file in sys.argv[1:]:\n"
        "    while world.rank == 1 and not os.path.exists(file): time.sleep(0.1)\n"
        "    world.Allreduce(MPI.IN_PLACE, value)\n"
        "while not os.path.exists('end'): time.sleep(0.1)\n"
    )
    files = [shanty.folder / "first", shanty.folder / "second"]
    process = shanty.start(
        *("run", "--json", "-n", 2, "--stall-after", AFTER), shanty.script(script), *files
    )
    wait_for(lambda: shanty.status().get("stalled"))
    assert "(stalled)" in shanty("ps").stdout
    assert "rank 1 on " in shanty("show", "last").stdout
    files[0].touch()
    wait_for(lambda: len(read_lines(shanty.last.stalls)) == 2)
    files[1].touch()
    wait_for(lambda: shanty.status()["stalled"] is None)
    (shanty.folder / "end").touch()
    out, said = process.communicate(timeout=40)
    assert process.returncode == 0, said
    told = [json.loads(line) for line in out.splitlines()]
    stalls = [one for one in told if one["event"] == "stall"]
    assert [stall["odd"] for stall in stalls] == [[1], [1]]
    assert "idle in <module>" in stalls[0]["what"]
    assert len(read_lines(shanty.last.stalls)) == 2


def healthy(shanty, *words) -> None:
    """Run to a good end, without an alarm."""
    done = shanty(
        *("run", "--oversubscribe", "--stall-after", AFTER, "--on-stall", "stop", *words),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not shanty.last.stalls.exists()


@pytest.mark.parametrize("what", SILENT)
def test_no_alarm_on_a_run_that_is_merely_silent(shanty, what):
    healthy(shanty, "-n", 2, shanty.script(HEAD + SILENT[what]))


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "signal.SIG_DFL", "lambda *_: None"])
def test_no_alarm_on_a_script_that_takes_the_signal_of_the_watch(shanty, handler):
    taken = f"import signal\nsignal.signal(signal.SIGRTMIN + 8, {handler})\n"
    healthy(shanty, "-n", 2, shanty.script(HEAD + taken + SILENT["a loop of allreduces"]))


def test_no_alarm_on_a_loop_in_any_mpi(shanty, flavour):
    healthy(shanty, "--mpi", flavour, "-n", 3, shanty.script(HEAD + BY_METHODS))


def test_no_alarm_on_a_compiled_loop(shanty, flavour):
    healthy(shanty, "--mpi", flavour, "-n", 2, compiled(shanty.folder, flavour, C_LOOP))


def test_off(shanty):
    script = shanty.script(ASLEEP.replace("300", "4"))
    (shanty.folder / "shanty.toml").write_text("[run]\nstall_after = 'off'\n")
    done = shanty("run", "-n", 2, script)
    assert done.returncode == 0, done.stderr
    assert not shanty.last.stalls.exists()


LARGE = """
import tensorflow
from mpi4py import MPI
x, world = tensorflow.random.normal((400, 400)), MPI.COMM_WORLD
while world.rank:
    x = tensorflow.linalg.qr(x)[0]
world.barrier()
"""


@LONG
@pytest.mark.timeout(600)
def test_names_in_a_library_of_hundreds_of_megabytes(shanty):
    """The node agent does not grow by what TensorFlow's libraries say of themselves."""
    words = ["--python", environments.tensorflow(), "--alone", "ok", "--stall-after", AFTER]
    process = shanty.start("run", "-n", 2, *words, shanty.script(LARGE))
    try:
        wait_for(lambda: shanty.status().get("stalled"), 300)
        for _ in range(3):
            shanty("stacks", "last")
        agent = (read_json(shanty.last.agents) or {})["node_agent"]["pid"]
        status = Path(f"/proc/{agent}/status").read_text()
    finally:
        shanty("stop", "last")
        process.communicate(timeout=60)
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) < 64 << 10
