"""Rank 2 does what the first argument says while the others wait in a barrier."""

import os
import signal
import subprocess
import sys

from mpi4py import MPI


class WordlessError(Exception):
    def __str__(self):
        raise TypeError("no text")


world = MPI.COMM_WORLD
how = sys.argv[1]
if sys.argv[2:] == ["hook"]:
    sys.excepthook = lambda *error: sys.__excepthook__(*error)
world.Barrier()
if world.rank == 2:
    print("rank 2 is about to", how, flush=True)
    if how == "raise":
        raise ValueError("a bad thing")
    if how == "wordless":
        raise WordlessError
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "abort":
        world.Abort(7)
    if how == "helper":
        assert subprocess.run([sys.executable, "-c", "raise SystemExit(4)"]).returncode == 4
        assert subprocess.run(["false"]).returncode == 1
world.Barrier()
