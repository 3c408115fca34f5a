"""The `mpi` backend of torch.distributed on 2, 3 and 4 ranks of every MPI, call by call."""

from __future__ import annotations

import pytest

from launches import FLAVOURS, LONG, Launches, alone, bare, launch
from runs import Shanty

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.sampled, pytest.mark.timeout(300)]

CALLS = ("torch_collectives", "torch_ways", "torch_work")
OFTEN = [(flavour, 2) for flavour in FLAVOURS]
MORE = [(flavour, ranks) for flavour in FLAVOURS for ranks in (3, 4)]


@pytest.mark.parametrize(
    ("flavour", "ranks"),
    [*OFTEN, *(pytest.param(*each, marks=LONG) for each in MORE if each not in OFTEN)],
)
def test_every_call(launches: Launches, flavour: str, ranks: int) -> None:
    launches.check(flavour, ranks, "distributed", *CALLS)


def test_work_of_three_ranks(launches: Launches) -> None:
    launches.check("openmpi5", 3, "distributed", "torch_work")


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp(launches: Launches, ranks: int) -> None:
    store = str(launches.scratch / f"store-{ranks}")
    launches.check("openmpi5", ranks, "distributed", "torch_ddp", arguments=[store])


@pytest.mark.parametrize("left", ["nothing", "barrier"])
def test_exit_without_destroy(left: str) -> None:
    done = bare(2, "torch_exit.py", left)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end of script") == 2


def test_exit_amid_communication_ends_the_run() -> None:
    done = launch(2, "torch_exit.py", "never")
    assert done.returncode != 0
    assert "rank 0 exits, but barrier on group 0, rank 0 of 2 is still under way" in done.stderr


INIT = "import torch.distributed as d, shanty.torch; d.init_process_group('mpi'); "
HOROVOD = "import shanty.torch as hvd; hvd.init()"
OF_TWO = {"WORLD_SIZE": "2", "RANK": "0"}
LEVEL = "import mpi4py; mpi4py.rc.thread_level = {!r}; "
REFUSED = {
    "a world of another size": (INIT, OF_TWO, "MPI reports a world of 1, but WORLD_SIZE=2"),
    "Horovod in such a world": (HOROVOD, OF_TWO, "MPI reports a world of 1, but WORLD_SIZE=2"),
    "calls of one thread only": (LEVEL.format("single") + INIT, {}, "MPI_THREAD_MULTIPLE"),
    "Horovod without calls of several threads": (
        LEVEL.format("serialized") + HOROVOD,
        {},
        "MPI_THREAD_MULTIPLE",
    ),
    # Members are named by PyTorch's ranks and made from MPI's: they must be the same.
    "a world of other ranks": (
        "import torch.distributed as d, shanty.torch; "
        "from torch.testing._internal.distributed.fake_pg import FakeStore; "
        "d.init_process_group('fake', store=FakeStore(), rank=1, world_size=2); "
        "d.new_group([1], backend='mpi')",
        {},
        "as rank 1 of 2, but MPI reports rank 0 of 1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_start_that_is_refused(what: str) -> None:
    code, environment, words = REFUSED[what]
    done = alone(code, **environment)
    assert done.returncode != 0
    assert words in done.stderr


def test_without_several_threads() -> None:
    """With MPI_THREAD_SERIALIZED no call may run in its caller while the thread is there."""
    code = LEVEL.format("serialized") + INIT
    done = alone(code + "import torch; t = torch.ones(2); d.all_reduce(t); print(t.sum())")
    assert (done.returncode, done.stdout) == (0, "tensor(2.)\n"), done.stderr


UNAIDED = """
import sys
import torch
import torch.distributed as dist
assert "shanty.torch" not in sys.modules and dist.is_mpi_available()
dist.init_process_group("mpi")
group = dist.new_group()
tensor = torch.ones(3)
dist.all_reduce(tensor, group=group)
dist.monitored_barrier()
assert tensor.tolist() == [2.0] * 3 == [float(dist.get_world_size())] * 3
dist.destroy_process_group()
dist.init_process_group("gloo")
dist.all_reduce(tensor, group=dist.new_group(backend="mpi"))
dist.destroy_process_group()
print("well", tensor.tolist())
"""


@pytest.mark.parametrize("line", [[], ["sh", "-c", 'exec python "$0"']], ids=["seen", "unseen"])
def test_a_script_that_does_not_import_it(shanty: Shanty, line: list[str]) -> None:
    done = shanty("run", "-q", "-n", "2", *line, shanty.script(UNAIDED))
    assert done.stdout.count("well [4.0, 4.0, 4.0]") == 2, done.stdout + done.stderr


WORLD_OF_ONE = """
import torch, torch.distributed as dist, shanty.torch
ones = torch.ones(2)
dist.init_process_group("mpi")
dist.all_reduce(ones)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
dist.init_process_group("cpu:mpi,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(ones)
print(ones.tolist(), type(dist.group.WORLD).__name__)
"""


def test_world_of_one() -> None:
    """DETAIL does not crash. What people write for GPUs works without them, too: by MPI."""
    done = alone(WORLD_OF_ONE, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0] MPIGroup\n"), done.stderr
    assert "lowers it to INFO" in done.stderr
