"""The same thing again and again: no hang, no process, no segment, no session folder."""

from __future__ import annotations

import signal

import pytest

from runs import LONG, WORKERS, traces, vanish, wait_for

TIMES = 50 if LONG else 3


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-n", "2", str(WORKERS / "allreduce.py")], 0),
        (["-n", "64", "--oversubscribe", "true"], 0),
        (["-n", "4", "--oversubscribe", str(WORKERS / "misbehave.py"), "kill"], 137),
    ],
    ids=["two-ranks", "sixty-four", "failing"],
)
def test_many_runs(shanty, words, code):
    before = traces()
    for _ in range(TIMES):
        assert shanty("run", "-q", *words, timeout=60).returncode == code
        wait_for(lambda: not shanty.alive(), 5, "processes of the run are left")
        vanish(traces() - before, 5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_interrupts(shanty):
    script = shanty.script(
        "import time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\ntime.sleep(100)\n"
    )
    before = traces()
    for number in range(TIMES):
        process = shanty.start("run", "-q", "-n", 2, script)
        wait_for(
            lambda: (
                shanty.status()
                and len(list((shanty.home / "runs").iterdir())) == number + 1  # noqa: B023
                and shanty.status().get("joined") == 2
            )
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
        wait_for(lambda: not shanty.alive(), 5, "processes of the run are left")
        vanish(traces() - before, 5)
