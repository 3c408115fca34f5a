"""Signals to the command, to a user's own mpirun and to a run: ranks with a handler get them."""

from __future__ import annotations

import os
import signal

from runs import wait_for
from shanty.runtime import platform

HANDLERS = """
import signal, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
seen = []
for name in "USR1", "USR2", "ALRM", "HUP":
    number = getattr(signal, "SIG" + name)
    if rank in map(int, sys.argv[1].split(",")):
        signal.signal(number, lambda number, _: seen.append(signal.Signals(number).name))
    else:
        signal.signal(number, signal.SIG_DFL)  # MPICH and PMIx may have handlers of their own
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
wanted = int(sys.argv[2])
while len(seen) < wanted or not wanted:
    time.sleep(0.02)
print(rank, "saw", *seen, flush=True)
"""


def both_are_ready(shanty) -> bool:
    logs = shanty.last.path / "logs"
    names = [logs / f"rank-{rank}.log" for rank in range(2)]
    return all(name.exists() and "ready" in name.read_text() for name in names)


def test_signals_to_the_command_reach_ranks_that_handle_them(shanty, flavour):
    """A rank without a handler goes on, and so does the command; SIGTERM, or SIGQUIT, ends both."""
    script = shanty.script(HANDLERS)
    process = shanty.start("run", "--mpi", flavour, "-n", 2, script, "0", "0")
    wait_for(lambda: shanty.status().get("state") == "running" and both_are_ready(shanty))
    assert process.stderr is not None
    passed_on = "was passed on to rank 0; rank 1 has no handler for it"
    for name in "USR1", "ALRM", "HUP":
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.stderr.readline().decode() == f"shanty: SIG{name} {passed_on}\n"
    assert passed_on in shanty("signal", "last", "usr2").stderr
    other = shanty("signal", "last", "WINCH")
    assert (other.returncode, "no rank has a handler" in other.stderr) == (1, True), other.stderr
    ending = signal.SIGQUIT if flavour == "openmpi5" else signal.SIGTERM  # Ctrl-\\ in a terminal
    process.send_signal(ending)
    process.communicate(timeout=20)
    assert process.returncode == 128 + ending
    assert shanty.status()["state"] == "stopped"
    assert shanty("signal", "last").stderr.endswith("the run has ended\n")


def test_a_signal_to_the_users_own_launcher_reaches_the_ranks(shanty, flavour):
    """Launchers signal a rank's process group: what starts the rank outlives the signal."""
    line = ["mpirun", "-np", 2, "python", shanty.script(HANDLERS), "0,1", "1"]
    process = shanty.start("run", "--mpi", flavour, "--", *line)
    wait_for(lambda: shanty.status().get("up") == 2 and both_are_ready(shanty))
    children = platform.processes().values()
    agent = shanty.agents()["node_agent"]
    launcher = next(entry.pid for entry in children if entry.parent == agent)
    os.kill(launcher, signal.SIGUSR1)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out.count(b"saw SIGUSR1")) == (0, 2), err
