"""What Horovod's API knows without MPI: its settings, where ranks stand, process sets."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch

import shanty.torch as hvd
from shanty.collectives import process_sets
from shanty.collectives.settings import Settings
from shanty.collectives.world import check_world

# ------------------------------------------------------------------------------ settings


def test_settings_are_horovods() -> None:
    assert Settings.read({}) == Settings()
    standard = Settings()
    assert (standard.fusion_threshold, standard.cache_capacity) == (128 << 20, 1024)
    assert (standard.stall_warning, standard.stall_shutdown) == (60, 0)
    assert standard.stall_check and not standard.timeline


def test_settings_are_read() -> None:
    found = Settings.read(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "3.5",
            "HOROVOD_CACHE_CAPACITY": "7",
            "HOROVOD_TIMELINE": "/tmp/a.json",
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            "HOROVOD_STALL_CHECK_DISABLE": "true",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10",
            "HOROVOD_AUTOTUNE": "what has no meaning here",
        }
    )
    assert found == Settings(0, 0.0035, 7, "/tmp/a.json", True, False, 5.0, 10.0)
    assert Settings.read({"HOROVOD_CYCLE_TIME": "", "HOROVOD_TIMELINE_MARK_CYCLES": "0"}) == (
        Settings()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FUSION_THRESHOLD", "64 MB"),
        ("FUSION_THRESHOLD", "-1"),
        ("CYCLE_TIME", "fast"),
        ("CYCLE_TIME", "nan"),
        ("CYCLE_TIME", "inf"),
        ("CACHE_CAPACITY", "1.5"),
        ("STALL_CHECK_TIME_SECONDS", "-3"),
        ("STALL_CHECK_DISABLE", "perhaps"),
    ],
)
def test_bad_settings_are_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"HOROVOD_{name}={value}: must be"):
        Settings.read({f"HOROVOD_{name}": value})


# --------------------------------------------------------------------------------- place


def test_places_on_two_hosts() -> None:
    """Horovod's own example: two ranks on one host, one on the other."""
    seats = [(0, 2), (1, 2), (0, 1)]
    places = [process_sets.topology(rank, seats) for rank in range(3)]
    assert [each.cross_size for each in places] == [2, 1, 2]
    assert [each.cross_rank for each in places] == [0, 0, 1]
    assert [each.local_rank for each in places] == [0, 1, 0]
    assert [each.local_size for each in places] == [2, 2, 1]
    assert not any(each.homogeneous for each in places)
    assert process_sets.topology(3, [(0, 2), (1, 2), (0, 2), (1, 2)]) == process_sets.Topology(
        3, 4, 1, 2, 1, 2, True
    )


RUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_what_the_run_says_of_the_place() -> None:
    assert process_sets.told(3, 4, RUN) == (1, 2)
    assert process_sets.told(3, 4, {}) is None
    assert process_sets.told(0, 2, RUN) is None  # only a part of the world
    assert process_sets.told(3, 4, RUN | {"LOCAL_WORLD_SIZE": "1"}) is None
    assert process_sets.told(3, 4, RUN | {"LOCAL_RANK": "x"}) is None


PROMISES: list[tuple[dict[str, str], str]] = [
    ({"WORLD_SIZE": "2", "RANK": "0"}, "MPI reports a world of 1, but WORLD_SIZE=2 in the environ"),
    ({"WORLD_SIZE": "1", "RANK": "1"}, "MPI reports rank 0 of 1, but RANK=1 in the environment"),
    ({"WORLD_SIZE": "1", "RANK": "0"}, ""),
    ({"RANK": "1"}, ""),
]


@pytest.mark.parametrize(("promised", "words"), PROMISES)
def test_a_world_that_was_not_promised(promised: dict[str, str], words: str) -> None:
    if not words:
        check_world(0, 1, "Open MPI", promised)
        return
    with pytest.raises(RuntimeError, match=words) as refused:
        check_world(0, 1, "Open MPI", promised)
    assert "shanty run" in str(refused.value)


# -------------------------------------------------------------------------- process sets


def test_process_sets_are_planned_alike() -> None:
    whole = (0, 1, 2, 3)
    assert process_sets.plan([[(0, 1), (2, 3)]] * 4, 4, [whole]) == [(0, 1), (2, 3)]
    # a communicator: every rank names its own
    own = [[(0, 2)], [(1, 3)], [(0, 2)], [(1, 3)]]
    assert process_sets.plan(own, 4, [whole]) == [(0, 2), (1, 3)]
    assert process_sets.plan([[]] * 4, 4, [whole]) == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([(0, 1)], "already a process set"),
        ([(0, 1, 2, 3)], "global_process_set"),
        ([(2,), (2,)], "already a process set"),
        ([()], "no member"),
        ([(1, 1)], "twice"),
        ([(1, 4)], "0 to 3"),
        ([(-1, 1)], "0 to 3"),
    ],
)
def test_process_sets_that_cannot_be(ranks: list[tuple[int, ...]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        process_sets.plan([ranks] * 4, 4, [(0, 1, 2, 3), (0, 1)])


def test_ranks_that_do_not_agree() -> None:
    assert process_sets.agreed([("add([1])", 5), ("add([1])", 6)]) == [5, 6]
    with pytest.raises(ValueError, match=r"rank 0 called add\(\[1\]\), rank 2 add\(\[2\]\)"):
        process_sets.agreed([("add([1])", 0), ("add([1])", 0), ("add([2])", 0)])


def test_a_process_set_before_it_is_registered() -> None:
    chosen = hvd.ProcessSet((3, 1, 2))
    assert chosen.ranks == [1, 2, 3]
    assert (chosen.process_set_id, chosen.size(), chosen.rank()) == (None, None, None)
    assert "unregistered" in str(chosen) and "[1, 2, 3]" in str(chosen)
    for wrong in (["a"], [0.5], 3, object()):
        with pytest.raises(ValueError, match="ranks or from an mpi4py communicator"):
            hvd.ProcessSet(wrong)  # type: ignore[arg-type]
    assert hvd.global_process_set.process_set_id == 0


# --------------------------------------------------------------------------- before init

QUESTIONS = [
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("is_homogeneous", "mpi_threads_supported", "stop_timeline"),
]


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_before_init(name: str) -> None:
    with pytest.raises(ValueError, match=r"hvd\.init"):
        getattr(hvd, name)()


def test_the_import_starts_nothing() -> None:
    """The backend alone loads nothing of Horovod's API."""
    code = (
        "import sys, threading, shanty.torch; "
        "print('mpi4py.MPI' in sys.modules, threading.active_count(), "
        "[name for name in sys.modules if '.hvd' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False 1 []\n"


# --------------------------------------------------------------------------- compression


def test_compression() -> None:
    tensor = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    smaller, ctx = hvd.Compression.fp16.compress(tensor)
    assert smaller.dtype is torch.float16
    back = hvd.Compression.fp16.decompress(smaller, ctx)
    assert back.dtype is torch.float64 and torch.allclose(back, tensor, rtol=1e-3)
    whole = torch.tensor([7])
    assert hvd.Compression.fp16.compress(whole)[0] is whole
    assert hvd.Compression.none.compress(tensor) == (tensor, None)
    assert hvd.Compression.none.decompress(tensor, None) is tensor
