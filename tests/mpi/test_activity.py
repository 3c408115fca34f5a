"""What the status line says of ranks that print nothing: compilers, files, programs."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import sys
import time

import pytest

COMPILES = """
import os, subprocess, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    while not os.path.exists("over"):
        subprocess.run(["./cc1plus", "-c", "import time; time.sleep(0.5); sum(range(10**6))"])
else:
    while not os.path.exists("over"):
        sum(range(10**6))
print("over")
"""


@pytest.mark.slow
@pytest.mark.sampled  # it keeps both cores busy until that is said
def test_a_silent_start_says_what_ranks_are_busy_with(shanty):
    """A compiler here is a Python of that name: it is told by its name."""
    (shanty.folder / "cc1plus").symlink_to(sys.executable)
    ours, theirs = pty.openpty()
    process = shanty.start("run", "-n", 2, shanty.script(COMPILES), stderr=theirs)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 60
    wanted = b"rank 0 compiling (cc1plus), rank 1 busy"
    while wanted not in seen:
        assert time.monotonic() < deadline, seen[-2000:].decode(errors="replace")
        if select.select([ours], [], [], 0.2)[0]:
            seen += os.read(ours, 4096)
    assert shanty.status()["activity"] == wanted.decode()
    assert f"doing      {wanted.decode()}" in shanty("show").stdout.splitlines()
    (shanty.folder / "over").touch()
    with contextlib.suppress(OSError):  # until nobody has that terminal any more
        while os.read(ours, 4096):
            pass
    os.close(ours)
    assert sorted(process.communicate()[0].splitlines()) == [b"[0] over", b"[1] over"]
    assert process.returncode == 0
    assert shanty.status()["activity"] == ""
