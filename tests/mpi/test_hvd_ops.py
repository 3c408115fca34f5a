"""Horovod's API on 2 and 4 ranks of every MPI: each op and option, against float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import environments
from runs import Shanty
from torch_runs import FLAVOURS, LONG, Launches, checks, environment, passed

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

CALLS = (
    *("hvd_reductions.py", "hvd_moves.py", "hvd_gradients.py", "hvd_functions.py"),
    *("hvd_sets.py", "hvd_fusion.py"),
)
OFTEN = [*((flavour, 2) for flavour in FLAVOURS), ("openmpi5", 4)]
MORE = [(flavour, 4) for flavour in FLAVOURS]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(tmp_path_factory.mktemp("hvd"))


@pytest.mark.parametrize(
    ("flavour", "ranks"),
    [*OFTEN, *(pytest.param(*each, marks=LONG) for each in MORE if each not in OFTEN)],
)
def test_every_call(launches: Launches, flavour: str, ranks: int) -> None:
    done = launches.once(flavour, ranks, "hvd_ops.py")
    for name in (name for script in CALLS for name in checks(script)):
        passed(done, name)
    assert done.returncode == 0, done.stderr


def alone(
    code: str, python: str | Path = sys.executable, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run some Python as one plain process."""
    env = environment(OMPI_MCA_btl="self", **extra)
    return subprocess.run(
        [python, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


INIT = "import torch, shanty.torch as hvd; hvd.init(); "
USE = "print(hvd.size(), hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist())"


@pytest.mark.parametrize(
    "code",
    [
        INIT + USE,
        INIT + USE + "; hvd.shutdown()",
        INIT + "hvd.shutdown(); hvd.init(); " + USE,
        "import mpi4py; mpi4py.rc.initialize = False; " + INIT + USE,
    ],
    ids=["left open", "shut down", "begun again", "MPI started by it"],
)
def test_a_world_of_one(code: str) -> None:
    done = alone(code)
    assert (done.returncode, done.stdout) == (0, "1 [1.0, 1.0]\n"), done.stderr


def test_too_low_thread_level() -> None:
    done = alone("import mpi4py; mpi4py.rc.thread_level = 'serialized'; " + INIT)
    assert done.returncode != 0
    assert "MPI_THREAD_MULTIPLE" in done.stderr


def test_contradicting_world_size() -> None:
    done = alone(INIT, WORLD_SIZE="2", RANK="0")
    assert done.returncode != 0
    assert "MPI reports a world of 1, but WORLD_SIZE=2" in done.stderr


CYCLES = """
import gc, sys, manifold3d
for import_first in (True, False):
    cycle = [manifold3d.Manifold()]
    cycle.append(cycle)
    if import_first:
        import shanty.torch as hvd
        print(gc.get_freeze_count() > 1000)
"""


def test_modules_of_nanobind_find_no_leaks_at_the_end() -> None:
    """They count what is left after the last collection, of which nothing may be kept out."""
    python = environments.environment("nanobind", environments.NANOBIND, beside=sys.executable)
    done = alone(CYCLES, python=python)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


INTERRUPTED = """
import torch, shanty.torch as hvd
from shanty.collectives import process_sets
hvd.init()
controller = process_sets.controllers[0]
def interrupt():
    raise KeyboardInterrupt
controller._advance = interrupt
try:
    hvd.allreduce_(torch.ones(2), name="x")
except KeyboardInterrupt:
    del controller._advance
controller.drive = lambda _: None  # only the controller's own thread goes on
print(hvd.allreduce_(torch.ones(2), name="y", op=hvd.Sum).tolist())
"""


def test_an_interrupted_wait_leaves_the_controller_running() -> None:
    done = alone(INTERRUPTED)
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0]\n"), done.stderr


BESIDE = """
import torch, torch.distributed as dist, shanty.torch as hvd
hvd.init()
dist.init_process_group("mpi")
handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
ones = torch.ones(3)
dist.all_reduce(ones)
assert hvd.synchronize(handle).tolist() == ones.tolist()
dist.destroy_process_group()
hvd.barrier()
print("both")
"""


def test_beside_the_backend(shanty: Shanty) -> None:
    done = shanty("run", "-q", "-n", "2", shanty.script(BESIDE))
    assert done.stdout.count("both") == 2, done.stdout + done.stderr
