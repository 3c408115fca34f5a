"""Horovod's API on 2 and 4 ranks of every MPI: each op and option, against float64."""

from __future__ import annotations

import sys

import pytest

import environments
from launches import FLAVOURS, LONG, Launches, alone
from runs import Shanty

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

CALLS = (
    *("reductions", "hvd_reductions", "moves", "hvd_moves", "gradients", "hvd_gradients"),
    *("hvd_functions", "hvd_sets", "hvd_fusion"),
)
OFTEN = [*((flavour, 2) for flavour in FLAVOURS), ("openmpi5", 4)]
MORE = [(flavour, 4) for flavour in FLAVOURS]


@pytest.mark.parametrize(
    ("flavour", "ranks"),
    [*OFTEN, *(pytest.param(*each, marks=LONG) for each in MORE if each not in OFTEN)],
)
def test_every_call(launches: Launches, flavour: str, ranks: int) -> None:
    launches.check(flavour, ranks, "torch", *CALLS)


TWICE = """
import mpi4py; mpi4py.rc.initialize = False
import torch, shanty.torch as hvd
for _ in range(2):
    hvd.init()
    print(hvd.size(), hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist())
    hvd.shutdown()
"""


def test_a_world_of_one() -> None:
    done = alone(TWICE)
    assert (done.returncode, done.stdout) == (0, 2 * "1 [1.0, 1.0]\n"), done.stderr


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
negotiator = process_sets.negotiators[0]
def interrupt():
    raise KeyboardInterrupt
negotiator._advance = interrupt
try:
    hvd.allreduce_(torch.ones(2), name="x")
except KeyboardInterrupt:
    del negotiator._advance
negotiator.drive = lambda _: None  # only the negotiator's own thread goes on
print(hvd.allreduce_(torch.ones(2), name="y", op=hvd.Sum).tolist())
"""


def test_an_interrupted_wait_leaves_the_negotiator_running() -> None:
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
