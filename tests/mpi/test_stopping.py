"""Ctrl-C, stop, and the death of each part of shanty: nothing hangs and nothing is left."""

from __future__ import annotations

import os
import signal
import time

import pytest

from runs import wait_for

SLEEPER = """
import signal, sys, time
from mpi4py import MPI
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
MPI.COMM_WORLD.Barrier()
time.sleep(300)
"""


def start(shanty, *words, flavour="openmpi5"):
    """A run of two ranks that sleep; returns the process of the command line."""
    script = shanty.script(SLEEPER)
    process = shanty.start("run", "--mpi", flavour, "-n", 2, script, *words)
    wait_for(lambda: shanty.status().get("joined") == 2)
    return process


def ended(shanty) -> str:
    """The state, once the run is over."""
    wait_for(lambda: shanty.status().get("ended"), 15, "the run does not end")
    return str(shanty.status()["state"])


def test_one_interrupt_stops(shanty, flavour):
    process = start(shanty, flavour=flavour)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"was stopped" in err
    assert ended(shanty) == "stopped"


def test_a_run_whose_agents_are_stopped_says_so_and_can_be_ended(shanty):
    process = start(shanty)
    for pid in shanty.agents().values():
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "are stopped, as by SIGSTOP" in shanty("show", "last").stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"nothing watches the ranks. Let them go on: kill -CONT" in err
    assert ended(shanty) == "stopped"


def test_ranks_that_come_late_to_mpi_leave_nothing(shanty, flavour):
    """What the launcher writes while the ranks are in MPI_Init is found by that time."""
    gate = shanty.folder / "gate"
    script = shanty.script(
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{SLEEPER}"
    )
    process = shanty.start("run", "--mpi", flavour, "-n", 2, script)
    wait_for(lambda: shanty.status().get("state") == "running")  # as programs without MPI so far
    assert shanty.status()["joined"] == 0
    gate.touch()
    wait_for(lambda: shanty.status().get("joined") == 2)
    assert shanty("stop", "last", "--kill").returncode == 0
    process.communicate(timeout=20)


def test_two_interrupts_kill(shanty, flavour):
    process = start(shanty, "stubborn", flavour=flavour)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert b"stopping" in process.stderr.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - began < 4  # the grace alone is five seconds
    assert ended(shanty) == "stopped"


def test_stop_from_elsewhere(shanty, flavour):
    process = start(shanty, flavour=flavour)
    assert shanty("stop", "last").returncode == 0
    process.communicate(timeout=20)
    assert process.returncode == 143
    again = shanty("stop", "last")
    assert again.returncode == 0
    assert "has ended already" in again.stderr


def test_a_stubborn_rank_is_killed_after_the_grace(shanty):
    (shanty.home / "config.toml").write_text("stop_grace = 1\n")
    process = start(shanty, "stubborn")
    assert shanty("stop", "last").returncode == 0
    process.communicate(timeout=20)
    assert ended(shanty) == "stopped"


@pytest.mark.parametrize("victim", ["controller", "node_agent"])
def test_an_agent_is_killed(shanty, flavour, victim):
    process = start(shanty, flavour=flavour)
    os.kill(shanty.agents()[victim], signal.SIGKILL)
    process.communicate(timeout=20)
    assert ended(shanty) == "failed"
    failure = str(shanty.status()["failure"])
    assert victim.replace("_", " ") in failure
    assert "was killed" in failure
    assert process.returncode == 71
    assert '"failed"' in shanty("ps", "--json").stdout
    wait_for(lambda: not shanty.alive(), 10)


def test_both_agents_are_killed(shanty, flavour):
    process = start(shanty, flavour=flavour)
    agents = shanty.agents()
    os.kill(agents["node_agent"], signal.SIGSTOP)
    os.kill(agents["controller"], signal.SIGKILL)
    os.kill(agents["node_agent"], signal.SIGKILL)
    process.communicate(timeout=20)
    assert ended(shanty) == "lost"
    assert process.returncode == 75
    assert "the run's agents were killed" in shanty("show", "last").stdout
    wait_for(lambda: not shanty.alive(), 10)


def test_the_command_line_is_killed(shanty, flavour):
    process = start(shanty, flavour=flavour)
    process.kill()
    process.communicate()
    assert '"running"' in shanty("ps", "--active", "--json").stdout
    assert shanty("stop", "last").returncode == 0
    assert ended(shanty) == "stopped"


def test_a_detached_run_goes_on_and_can_be_followed(shanty):
    script = shanty.script(
        "import time\nfrom mpi4py import MPI\nfor i in range(5):\n"
        "    print('tick', i); time.sleep(0.2)\n"
    )
    done = shanty("run", "-n", 2, "--detach", "--name", "ticks", script)
    assert done.returncode == 0
    followed = shanty("logs", "-f", "ticks")
    assert sorted(followed.stdout.splitlines()) == sorted(
        f"[{rank}] tick {i}" for rank in range(2) for i in range(5)
    )
    assert shanty("logs", "--rank", "1", done.stdout.strip()).stdout.split() == (
        ["tick", "0", "tick", "1", "tick", "2", "tick", "3", "tick", "4"]
    )
    assert ended(shanty) == "succeeded"


def test_nobody_reads_the_output(shanty):
    script = shanty.script("import sys\nfor i in range(100000): print('line', i)\n")
    process = shanty.start("run", "-n", 2, script)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=30)
    assert process.returncode == 141
    assert ended(shanty) == "succeeded"
    assert process.stderr is not None
    process.stderr.close()


def test_the_time_limit_of_a_line_that_ends_well(shanty):
    done = shanty("run", "-t", "1s", "mpirun -np 2 sleep 30; echo over")
    assert done.returncode == 124
    assert shanty.status()["state"] == "failed"


def test_what_a_line_leaves_running_is_ended(shanty):
    done = shanty("run", "sleep 1000 & true")
    assert done.returncode == 0
    wait_for(lambda: not shanty.alive(), 5, "something is left")  # the agents are just leaving


def test_stop_takes_the_run_that_is_on(shanty):
    first = shanty("run", "-d", "-q", "--name", "twin", "-n", 1, "sleep", "100").stdout.strip()
    assert shanty("run", "-q", "--name", "twin", "-n", 1, "true").returncode == 0
    done = shanty("stop", "twin", "--kill")
    assert done.returncode == 0
    assert first in done.stderr
