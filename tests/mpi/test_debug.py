"""`--debug RANK`: that rank's pdb on this terminal."""

from __future__ import annotations

import os
import pty
import select
import time

import pytest

SCRIPT = """
from mpi4py import MPI
secret = 40 + MPI.COMM_WORLD.rank
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    raise ValueError("look at me")
"""


def read_until(terminal: int, text: bytes, seconds: float = 40) -> bytes:
    """What the terminal shows until `text` is in it."""
    seen, deadline = b"", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < deadline, seen.decode(errors="replace")
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096)
    return seen


def test_a_rank_is_stepped_through(shanty):
    ours, theirs = pty.openpty()
    process = shanty.start(
        "run",
        "-q",
        "-n",
        2,
        "--debug",
        1,
        shanty.script(SCRIPT),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    first = read_until(ours, b"(pdb rank 1) ")
    assert b"from mpi4py import MPI" in first  # the script's first line
    os.write(ours, b"continue\n")  # to the exception, where it stops for a look
    read_until(ours, b"(pdb rank 1) ")
    os.write(ours, b"p secret + 1\n")
    assert b"42" in read_until(ours, b"42")
    os.write(ours, b"quit\n")
    read_until(ours, b"ended with exit code 1")
    assert process.wait(timeout=30) == 1
    os.close(ours)


@pytest.mark.parametrize(
    "before", [[], ["next", "next"], ["next", "next", "next", "next"]], ids=len
)
def test_to_quit_the_debugger_ends_the_run(shanty, before):
    """Before MPI is up, while the others wait in a barrier, behind it."""
    ours, theirs = pty.openpty()
    words = ("run", "-q", "-n", 2, "--debug", 1, shanty.script(SCRIPT))
    process = shanty.start(*words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    for command in [*before, "q"]:
        read_until(ours, b"(pdb rank 1) ")
        os.write(ours, f"{command}\n".encode())
    said = read_until(ours, b"ended with exit code 1")
    assert b"Traceback" not in said
    assert process.wait(timeout=30) == 1
    os.close(ours)
    assert "the debugger was left" in str(shanty.status()["failure"])


def test_without_a_terminal_it_is_refused(shanty):
    done = shanty("run", "-n", 2, "--debug", 0, shanty.script("pass\n"))
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
