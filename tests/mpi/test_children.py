"""Processes that a rank starts and that start MPI, too."""

from __future__ import annotations

import subprocess

import pytest

from shanty.launch import mpis
from shanty.runtime.rundir import read_lines

CHILD = """
import subprocess, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
code = "from mpi4py import MPI; w = MPI.COMM_WORLD; print('child', w.rank, w.size, flush=True)"
done = subprocess.run([sys.executable, "-c", code])
print("ended", done.returncode, world.allreduce(1), flush=True)
"""

SPAWNED = """
import multiprocessing
from mpi4py import MPI

def sizes(_):
    return MPI.COMM_WORLD.size

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print("sizes", *pool.map(sizes, range(2)), MPI.COMM_WORLD.allreduce(1), flush=True)
"""

WRAPPER = """
import subprocess, sys
import shanty
line = [sys.executable, *sys.argv[1:]]
sys.exit(subprocess.run(line, close_fds=False).returncode)  # one of them is Hydra's
"""

RANK = """
from mpi4py import MPI
print("rank", MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.size)
"""

WAITS = """
import subprocess, sys
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    subprocess.run(["./alone"])
MPI.COMM_WORLD.Barrier()
"""

ALONE = """
#include <mpi.h>
int main(int argc, char **argv) { MPI_Init(&argc, &argv); MPI_Finalize(); return 0; }
"""


def test_a_child_that_imports_mpi_is_a_world_of_its_own(shanty, flavour, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    words = ["run", "--mpi", flavour, "-n", "2", "-e", f"TMPDIR={temporary}"]
    done = shanty(*words, shanty.script(CHILD))
    assert done.returncode == 0, done.stderr
    assert not list(temporary.iterdir())
    assert sorted(done.stdout.splitlines()) == [
        *("[0] child 0 1", "[0] ended 0 2", "[1] child 0 1", "[1] ended 0 2")
    ]


def test_children_of_multiprocessing_import_the_script(shanty, flavour):
    done = shanty("run", "--mpi", flavour, "-n", 2, shanty.script(SPAWNED))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] sizes 1 1 2", "[1] sizes 1 1 2"]


def test_a_script_that_only_starts_another_one_is_no_rank(shanty, flavour):
    """It has not started MPI itself: its child is the rank."""
    wrapper = shanty.script(WRAPPER, "wrapper.py")
    script = shanty.script(RANK)
    done = shanty("run", "--mpi", flavour, "-n", 2, wrapper, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]


def test_a_compiled_child_that_hangs_is_named(shanty):
    found = mpis.select("openmpi", shanty.home, shanty.environ)
    (shanty.folder / "alone.c").write_text(ALONE)
    try:
        subprocess.run(
            [f"{found.prefix}/bin/mpicc", "alone.c", "-o", "alone"],
            cwd=shanty.folder,
            check=True,
            capture_output=True,
            timeout=120,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be compiled here: {error}")
    words = ("--stall-after", "3s", "--on-stall", "stop")
    done = shanty("run", "-n", 2, *words, shanty.script(WAITS))
    assert done.returncode == 76, done.stderr
    (stall,) = read_lines(shanty.last.stalls)
    assert stall["odd"] == [0]
    assert "(script.py:5) for its child process " in stall["what"]
    assert "(./alone), which has started MPI by itself and hangs in MPI_Init" in stall["what"]
    assert "without PMI_*, PMIX_* and OMPI_* in its environment" in stall["fix"]
