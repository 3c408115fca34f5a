"""How a run ends, by what became known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from plans import plan_of, world_of
from shanty.runtime.controller.verdicts import Outcome
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.root_cause import Verdict
from shanty.runtime.errors import LaunchError
from shanty.runtime.messages import Report
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure, State

LOST = Verdict(Failure("a host is lost"), LaunchError.exit_code)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.create()
    return found


def outcome_of(run: RunDir, ranks: int | None = 2) -> Outcome:
    """That of a run which may have three attempts."""
    plan = plan_of(ranks)
    return Outcome(run, plan._replace(limits=plan.limits._replace(retries=2)))


def failed_world() -> tuple[MpiWorld, Failure]:
    """A world whose rank 1 has failed."""
    world = world_of(2, "lab0", "lab0")
    world.report(Report({"event": "exited", "rank": 1, "code": 3, "host": "lab0"}), 2.0)
    failure = world.verdict(60.0)
    assert failure is not None
    return world, failure


def test_a_run_that_is_stopped_while_it_fails_is_not_tried_again(run: RunDir) -> None:
    outcome = outcome_of(run)
    assert outcome.condemn(LOST) == LOST.failure
    assert outcome.may_try_again(folder_lost=False)
    assert not outcome.may_try_again(folder_lost=True)
    assert not outcome.stop()
    assert not outcome.may_try_again(folder_lost=False)
    assert outcome.failure is not None and not outcome.stopped  # why it ended stays


def test_the_first_cause_counts(run: RunDir) -> None:
    outcome = outcome_of(run)
    world, failure = failed_world()
    found = outcome.world_ended("0", world, failure, None)
    assert found.log.endswith("rank-1.log")
    assert list(outcome.worlds) == ["0"]
    assert outcome.condemn(LOST) is None
    outcome.agents_lost(Failure("the node agent was killed"))
    outcome.launcher_ended(1, "")
    outcome.conclude({"0": world}, None, None)
    changes = outcome.status_changes({}, {"ended": 5.0})
    assert changes == {
        "state": State.FAILED, "exit_code": 3, "failure": found, "ended": 5.0,
    }  # fmt: skip
    assert not outcome.may_try_again(folder_lost=False)  # a script's own failure comes again


@pytest.mark.parametrize(
    ("more", "again"), [({"code": -9}, True), ({"code": -9, "oom": 1 << 30}, False),
                        ({"code": -11}, False)],
)  # fmt: skip
def test_a_rank_that_someone_has_killed_is_started_again(
    run: RunDir, more: dict[str, int], again: bool
) -> None:
    """Not one that ran out of memory, or that has crashed: that would come again."""
    outcome, world = outcome_of(run), world_of(2, "lab0", "lab0")
    world.report(Report({"event": "exited", "rank": 1, "host": "lab0", **more}), 2.0)
    failure = world.verdict(60.0)
    assert failure is not None
    outcome.world_ended("0", world, failure, None)
    outcome.launcher_ended(1, "")
    outcome.conclude({"0": world}, None, None)
    assert outcome.may_try_again(folder_lost=False) is again
    assert outcome.wants_another_attempt(folder_lost=False) is again


@pytest.mark.parametrize(("code", "forgiven"), [(0, True), (1, False)])
def test_a_line_of_the_users_that_ends_well_has_dealt_with_a_failed_world(
    run: RunDir, code: int, forgiven: bool
) -> None:
    outcome = outcome_of(run, None)
    world, failure = failed_world()
    outcome.world_ended("4711", world, failure, None)
    outcome.launcher_ended(code, "")
    assert outcome.forgive() is forgiven
    outcome.conclude({"4711": world}, None, None)
    state = outcome.status_changes({}, {})["state"]
    assert state is (State.SUCCEEDED if forgiven else State.FAILED)


def test_a_stopped_run_has_not_failed(run: RunDir) -> None:
    outcome = outcome_of(run)
    assert outcome.stop() and not outcome.stop()
    assert outcome.condemn(LOST) is None
    outcome.launcher_ended(-15, "")
    outcome.conclude({}, None, None)
    assert not outcome.may_be_damage()
    assert outcome.status_changes({}, {})["state"] is State.STOPPED
    answer = {"state": State.PENDING, "reason": "preempted"}
    assert outcome.status_changes(answer, {"ended": 5.0}) == answer
