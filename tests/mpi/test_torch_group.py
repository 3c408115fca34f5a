"""The `mpi` backend of torch.distributed on 2, 3 and 4 ranks of every MPI, call by call."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runs import Shanty
from torch_runs import FLAVOURS, LONG, Launches, bare, checks, environment, launch, passed

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.sampled, pytest.mark.timeout(300)]

CALLS = ("torch_collectives.py", "torch_ways.py", "torch_properties.py")


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(tmp_path_factory.mktemp("torch"))


def names(*scripts: str) -> list[str]:
    return [name for script in scripts for name in checks(script)]


OFTEN = [(flavour, 2) for flavour in FLAVOURS]
MORE = [(flavour, ranks) for flavour in FLAVOURS for ranks in (3, 4)]


@pytest.mark.parametrize(
    ("flavour", "ranks"),
    [*OFTEN, *(pytest.param(*each, marks=LONG) for each in MORE if each not in OFTEN)],
)
def test_every_call(launches: Launches, flavour: str, ranks: int) -> None:
    done = launches.once(flavour, ranks, "torch_calls.py")
    for name in names(*CALLS):
        passed(done, name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", names("torch_work.py"))
@pytest.mark.parametrize(
    ("flavour", "ranks"), [*((flavour, 2) for flavour in FLAVOURS), ("openmpi5", 3)]
)
def test_work(launches: Launches, flavour: str, ranks: int, name: str) -> None:
    done = launches.once(flavour, ranks, "torch_work.py")
    passed(done, name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", names("torch_ddp.py"))
@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp(launches: Launches, ranks: int, name: str) -> None:
    store = str(launches.scratch / f"store-{ranks}")
    done = launches.once("openmpi5", ranks, "torch_ddp.py", store)
    passed(done, name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("left", ["nothing", "barrier"])
def test_exit_without_destroy(left: str) -> None:
    done = bare(2, "torch_exit.py", left)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end of script") == 2


def test_exit_amid_communication_ends_the_run() -> None:
    done = launch(2, "torch_exit.py", "never")
    assert done.returncode != 0
    assert "rank 0 exits, but barrier on group 0, rank 0 of 2 is still under way" in done.stderr


def alone(code: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a line of Python as one plain process."""
    command = [sys.executable, "-c", code]
    # Open MPI 5 leaves a segment of shared memory behind where no launcher has started it.
    env = environment(OMPI_MCA_btl="self", **extra)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


INIT = "import torch.distributed as d, shanty.torch; d.init_process_group('mpi'); "


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


def test_world_of_one() -> None:
    done = alone(INIT + "import torch; t = torch.ones(2); d.all_reduce(t); print(t.sum())")
    assert (done.returncode, done.stdout) == (0, "tensor(2.)\n"), done.stderr


def test_contradicting_world_size() -> None:
    done = alone(INIT, WORLD_SIZE="2", RANK="0")
    assert done.returncode != 0
    assert "MPI reports a world of 1, but WORLD_SIZE=2" in done.stderr
    assert "shanty run" in done.stderr
    assert alone(INIT, WORLD_SIZE="1", RANK="0").returncode == 0
    assert "MPI reports rank 0 of 1, but RANK=1" in alone(INIT, WORLD_SIZE="1", RANK="1").stderr


def test_a_world_of_other_ranks() -> None:
    """Members are named by PyTorch's ranks and made from MPI's: they must be the same."""
    done = alone(
        "import torch.distributed as d, shanty.torch; "
        "from torch.testing._internal.distributed.fake_pg import FakeStore; "
        "d.init_process_group('fake', store=FakeStore(), rank=1, world_size=2); "
        "d.new_group([1], backend='mpi')"
    )
    assert "as rank 1 of 2, but MPI reports rank 0 of 1" in done.stderr


def test_too_low_thread_level() -> None:
    done = alone("import mpi4py; mpi4py.rc.thread_level = 'single'; " + INIT)
    assert done.returncode != 0
    assert "MPI_THREAD_MULTIPLE" in done.stderr


def test_without_several_threads() -> None:
    """With MPI_THREAD_SERIALIZED no call may run in its caller while the thread is there."""
    code = "import mpi4py; mpi4py.rc.thread_level = 'serialized'; " + INIT
    done = alone(code + "import torch; t = torch.ones(2); d.all_reduce(t); print(t.sum())")
    assert (done.returncode, done.stdout) == (0, "tensor(2.)\n"), done.stderr


def test_detail_does_not_crash() -> None:
    code = INIT + (
        "import torch; m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1)); "
        "m(torch.ones(1, 2)).sum().backward(); print('trained')"
    )
    done = alone(code, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "lowers it to INFO" in done.stderr


def test_import_does_not_start_mpi() -> None:
    done = alone("import sys, shanty.torch; print('mpi4py.MPI' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


CHOICES = """
from shanty.torch.devices import choose, Way
a, b, none = frozenset({"a"}), frozenset({"b"}), frozenset()
assert choose([("h", none, False, False)] * 2, "") is None
assert choose([("h", a, True, True), ("h", b, True, True)], "") is Way.NCCL
assert choose([("h", a | b, True, True)] * 2, "") is Way.NCCL
assert choose([("h", a, True, True)] * 2, "") is Way.AWARE  # one GPU for two ranks
assert choose([("h", a, True, False), ("i", b, False, True)], "") is Way.STAGED
assert choose([("h", a, True, True), ("i", a, True, True)], "") is Way.NCCL  # one each
assert choose([("h", a, True, True), ("i", none, False, True)], "") is Way.AWARE
assert choose([("h", a, True, True)], "staged") is Way.STAGED
try:
    choose([("h", a, True, True)], "fast")
except ValueError as error:
    print(error)
"""


def test_which_way_cuda_tensors_go() -> None:
    done = alone(CHOICES)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "SHANTY_CUDA=fast: must be one of nccl, aware, staged.\n"


def test_cpu_tensors_of_a_mixed_group() -> None:
    """What people write for GPUs works without them, too: CPU tensors go by MPI."""
    code = (
        "import torch, torch.distributed as d, shanty.torch; "
        "d.init_process_group('cpu:mpi,cuda:nccl', store=d.HashStore(), rank=0, "
        "world_size=1); t = torch.ones(2); d.all_reduce(t); print(type(d.group.WORLD).__name__)"
    )
    done = alone(code)
    assert (done.returncode, done.stdout) == (0, "MPIGroup\n"), done.stderr
