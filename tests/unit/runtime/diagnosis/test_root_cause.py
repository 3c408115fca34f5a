"""Verdicts on a launch where no rank is to blame."""

from __future__ import annotations

from plans import plan_of, world_of
from shanty.runtime.diagnosis.root_cause import at_end, explained, late, misplaced
from shanty.runtime.errors import LaunchError
from shanty.runtime.messages import Report
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.spec import Failure


def test_ranks_on_the_wrong_hosts() -> None:
    plan = plan_of(2, a=1, b=1)
    assert misplaced(plan, world_of(2, "a", "b")) is None
    verdict = misplaced(plan, world_of(2, "a", "a"))
    assert verdict is not None
    assert verdict.failure.why == "ranks on each host: a 2 (meant: 1), b 0 (meant: 1)"


def test_a_rank_that_never_starts_ends_a_line_of_the_users_too() -> None:
    """The plan does not know how many ranks a raw line starts; its first rank does."""
    plan = plan_of(None)
    worlds = {"4711": world_of(3, "a", "b")}
    assert late(plan, worlds, 60.0, 0.0) is None
    verdict = late(plan, worlds, 62.0, 0.0)
    assert verdict is not None
    assert verdict.failure.what == "rank 2 of 3 did not start within 60 s"


def test_no_rank_at_all() -> None:
    verdict = late(plan_of(2, 5), {}, 6.0, 0.0)
    assert verdict is not None
    assert verdict.failure.what == "ranks 0, 1 of 2 did not start within 5 s"


def test_a_launcher_that_is_killed() -> None:
    verdict = at_end(plan_of(2), {"0": world_of(2, "a", "a")}, -9, "")
    assert verdict is not None
    assert verdict.failure.what == "the launcher on host lab0 was ended by SIGKILL"
    assert "MPI_Abort" not in verdict.failure.why
    assert verdict.code == LaunchError.exit_code  # so that another attempt may follow


def test_a_command_that_is_not_found() -> None:
    """A shell says 127; the plan does not know what a raw line starts."""
    verdict = at_end(plan_of(None), {}, 127, "")
    assert verdict is not None
    assert verdict.failure.fix == "check the command, and that lab0 or its image has that program"
    verdict = at_end(plan_of(None), {"0": world_of(2, "a", "a")}, 127, "")
    assert verdict is not None and not verdict.failure.fix


def test_a_signal_that_the_launcher_passes_on() -> None:
    """Open MPI 4.1 handles SIGABRT by itself, and then ends the ranks."""
    failure = Failure("the launcher ended with exit code 134", "it ended the ranks itself")
    found = explained(failure, ["mpirun: Forwarding signal 6 to job"], "slots")
    assert found.what == "the launcher received SIGABRT and passed it on to the ranks"


def test_known_words_of_a_launcher_bring_the_cure() -> None:
    words = ["----", "There are not enough slots available in the system to satisfy the 4", "slots"]
    no_slots = FLAVOURS["openmpi5"].no_slots
    assert no_slots == FLAVOURS["openmpi4"].no_slots
    found = explained(Failure("the launcher ended with exit code 1"), words, no_slots)
    assert "--oversubscribe" in found.fix
    assert explained(Failure("x", "y"), words, no_slots) == Failure("x", "y")
    assert explained(Failure("x"), ["no such host"], no_slots) == Failure("x")
    assert explained(Failure("x"), words, FLAVOURS["mpich"].no_slots) == Failure("x")


def test_a_rank_that_loads_before_mpi_init_is_not_late() -> None:
    """The watch over stalls names it."""
    plan, world = plan_of(2, 5), world_of(2, "a", "a")
    world.report(Report({"event": "loading", "rank": 0, "path": "/o/libmpi.so"}), 1.0)
    assert late(plan, {"0": world}, 60.0, 0.0) is None
    world.report(Report({"event": "loading", "rank": 1, "path": "/o/libmpi.so"}), 50.0)
    assert late(plan, {"0": world}, 54.0, 0.0) is None
    assert late(plan, {"0": world}, 56.0, 0.0) is not None


def test_a_compiled_rank_that_left_first_is_named_where_the_launcher_ended_the_rest() -> None:
    world = world_of(3, "a", "a", "b")
    world.report(Report({"event": "exited", "rank": 1, "code": 0, "host": "a", "at": 5.0}), 5.0)
    verdict = at_end(plan_of(3), {"0": world}, 0, "")
    assert verdict is not None
    assert verdict.failure.rank == 1
    assert verdict.failure.what == (
        "rank 1 on a ended with exit code 0 before ranks 0, 2, and the launcher ended the rest"
    )
    assert "without MPI_Finalize" in verdict.failure.why
