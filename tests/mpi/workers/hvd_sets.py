"""The world, process sets, start and end. See run_checks.py."""

from __future__ import annotations

import os

import sets
import torch
from checks import raised
from mpi4py import MPI
from references import close, given, reduced, same

import shanty.torch as hvd


def check_questions() -> None:
    comm = MPI.COMM_WORLD
    assert (hvd.rank(), hvd.size()) == (comm.rank, comm.size)
    near = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert (hvd.local_rank(), hvd.local_size()) == (near.rank, near.size)
    near.Free()
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert hvd.mpi_threads_supported() and hvd.mpi_built() and hvd.mpi_enabled()
    assert not any([hvd.gloo_built(), hvd.gloo_enabled(), hvd.nccl_built(), hvd.ddl_built()])
    assert not any([hvd.ccl_built(), hvd.rocm_built()])
    hvd.init()
    assert hvd.global_process_set.ranks == list(range(hvd.size()))
    assert (hvd.global_process_set.size(), hvd.global_process_set.rank()) == (
        hvd.size(),
        hvd.rank(),
    )
    assert hvd.global_process_set.included()


def exercise(chosen: hvd.ProcessSet) -> None:
    """Every operation in a process set, those too that PyTorch alone has."""
    sets.exercise(chosen)
    if not chosen.included():
        raised(ValueError, lambda: hvd.barrier(chosen))
        return
    sparse = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], (hvd.size(),))
    found = hvd.sparse_allreduce_async(sparse, "s", hvd.Average, process_set=chosen)()
    assert found.to_dense().nonzero().flatten().tolist() == chosen.ranks
    close(found.to_dense().sum(), torch.tensor(1.0))
    hvd.barrier(chosen)


def check_dynamic_process_sets() -> None:
    size = hvd.size()
    first = hvd.add_process_set([0])
    odd = hvd.ProcessSet(range(1, size, 2))
    assert odd.process_set_id is None and odd.size() is None and odd.rank() is None
    if size > 2:
        assert hvd.add_process_set(odd) is odd
        assert odd.process_set_id != first.process_set_id
        exercise(odd)
        assert hvd.remove_process_set(odd)
    exercise(first)
    last = hvd.add_process_set([size - 1])
    assert hvd.remove_process_set(first) is True
    assert first.process_set_id is None and not hvd.remove_process_set(first)
    assert not hvd.remove_process_set(hvd.global_process_set)
    raised(ValueError, lambda: hvd.allreduce(torch.ones(2), process_set=first), "not registered")
    exercise(last)
    again = hvd.add_process_set(first)
    assert again is first
    exercise(first)
    for each in (first, last):
        assert hvd.remove_process_set(each)
    exercise(hvd.global_process_set)


def check_bad_process_sets() -> None:
    """The same error on every rank, after which it goes on."""
    size = hvd.size()
    there = hvd.add_process_set([0])
    for ranks in ([0], list(range(size)), [], [0, 0], [size], [-1]):
        error = raised(ValueError, lambda ranks=ranks: hvd.add_process_set(ranks))
        assert set(hvd.allgather_object(error)) == {error}
    error = raised(ValueError, lambda: hvd.add_process_set([min(hvd.rank(), 1)]))
    assert "do not agree" in error and "[1]" in error, error
    assert set(hvd.allgather_object(error)) == {error}
    hvd.remove_process_set(there)
    for wrong in (["a"], 3, [1.5]):
        raised(ValueError, lambda wrong=wrong: hvd.ProcessSet(wrong))


def check_sets_side_by_side() -> None:
    """Requests of one name in several process sets at a time have nothing to do with each other."""
    size, rank = hvd.size(), hvd.rank()
    alone = [hvd.add_process_set([each]) for each in range(size)]
    mine = alone[rank]
    for turn in range(10):
        handles = [
            hvd.allreduce_async(torch.full((3,), float(rank)), name="x", process_set=chosen)
            for chosen in (
                (mine, hvd.global_process_set)
                if (turn + rank) % 2
                else (hvd.global_process_set, mine)
            )
        ]
        of_mine, of_all = handles if (turn + rank) % 2 else reversed(handles)
        close(hvd.synchronize(of_all), torch.full((3,), (size - 1) / 2))
        close(hvd.synchronize(of_mine), torch.full((3,), float(rank)))
    for each in alone:
        assert hvd.remove_process_set(each)


def check_end_and_beginning() -> None:
    size, rank = hvd.size(), hvd.rank()
    there = hvd.add_process_set([0])
    for _ in range(3):
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized() and there.process_set_id is None
        raised(ValueError, hvd.rank)
        raised(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1)))
        sets = [there, hvd.ProcessSet([size - 1])]
        hvd.init(process_sets=sets)
        hvd.init(process_sets=sets)
        assert [each.process_set_id for each in sets] == [1, 2]
        assert hvd.allreduce_async(torch.ones(1), op=hvd.Sum) == 1
        assert hvd.synchronize(1).item() == size
        for each in sets:
            exercise(each)
    raised(ValueError, lambda: hvd.init(process_sets=[hvd.ProcessSet([1, 0, 5])]))
    hvd.shutdown()
    for bad in ([hvd.ProcessSet([0]), hvd.ProcessSet([0])], [hvd.ProcessSet(range(size))], "x"):
        raised(ValueError, lambda bad=bad: hvd.init(process_sets=bad))
        assert not hvd.is_initialized()
    hvd.init(process_sets="dynamic")
    assert hvd.rank() == rank


def check_communicators() -> None:
    """A world from an mpi4py communicator, or from ranks; process sets from communicators."""
    comm = MPI.COMM_WORLD
    half = comm.Split(comm.rank % 2)
    hvd.shutdown()
    if comm.size > 2:
        hvd.init(comm, process_sets=[hvd.ProcessSet(half)])
        chosen = hvd.ProcessSet(half)
        hvd.init(comm, process_sets=[chosen])
        assert hvd.global_process_set.mpi_comm is comm
        assert chosen.ranks == list(range(comm.rank % 2, comm.size, 2))
        exercise(chosen)
        hvd.shutdown()
    hvd.init(half)
    assert (hvd.size(), hvd.rank()) == (half.size, half.rank)
    assert hvd.local_size() == half.size
    same(hvd.allgather(torch.tensor([comm.rank])), torch.arange(comm.rank % 2, comm.size, 2))
    hvd.shutdown()
    hvd.init(list(range(comm.rank % 2, comm.size, 2)))
    assert (hvd.size(), hvd.rank()) == (half.size, half.rank)
    close(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(half.size)))
    hvd.shutdown()
    half.Free()
    raised(ValueError, lambda: hvd.init([(comm.rank + 1) % comm.size]))
    raised(ValueError, lambda: hvd.init("x"))
    hvd.init()
    assert hvd.size() == comm.size


def check_settings() -> None:
    hvd.shutdown()
    os.environ["HOROVOD_CYCLE_TIME"] = "fast"
    raised(ValueError, hvd.init, "HOROVOD_CYCLE_TIME=fast")
    os.environ["HOROVOD_CYCLE_TIME"] = "0"
    os.environ["HOROVOD_FUSION_THRESHOLD"] = os.environ["HOROVOD_CACHE_CAPACITY"] = "0"
    hvd.init()
    lots = [given((3,), seed=seed) for seed in range(20)]
    for _ in range(2):
        handles = [
            hvd.allreduce_async(each[hvd.rank()], name=f"f{number}", op=hvd.Sum)
            for number, each in enumerate(lots)
        ]
        for handle, tensors in zip(handles, lots, strict=True):
            close(hvd.synchronize(handle), reduced(tensors, hvd.Sum))
    hvd.shutdown()
    for name in ("CYCLE_TIME", "FUSION_THRESHOLD", "CACHE_CAPACITY"):
        del os.environ[f"HOROVOD_{name}"]
    hvd.init()
