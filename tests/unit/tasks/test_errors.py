"""What a run that did not succeed raises."""

from __future__ import annotations

import pickle

import pytest

from shanty.runtime.errors import ShantyError
from shanty.runtime.spec import HOST, Failure
from shanty.tasks.errors import RunError

FAILURE = Failure(
    "rank 1 was killed", "out of memory", "ask for more", 1, "here", "SIGKILL",
    tuple(f"line {number}" for number in range(30)), "/logs/1", HOST,
)  # fmt: skip


@pytest.fixture(params=["a failure", "no failure"])
def error(request: pytest.FixtureRequest) -> RunError:
    if request.param == "no failure":
        return RunError("run 7 was stopped")
    why, fix, log = FAILURE.why, FAILURE.fix, FAILURE.log
    return RunError(FAILURE.what, None, FAILURE, why=why, fix=fix, log=log)


def test_it_says_why_what_to_do_where_the_log_is_and_the_last_lines() -> None:
    why, fix, log = FAILURE.why, FAILURE.fix, FAILURE.log
    error = RunError(FAILURE.what, None, FAILURE, why=why, fix=fix, log=log)
    assert str(error).splitlines() == [
        "rank 1 was killed", "  why: out of memory", "  fix: ask for more", "  log: /logs/1",
        *(f"  | line {number}" for number in range(10, 30)),
    ]  # fmt: skip
    assert error.cause == HOST


def test_what_has_no_cause_is_one_line() -> None:
    assert str(RunError("run 7 was stopped")) == "run 7 was stopped"
    assert RunError("run 7 was stopped").cause == ""


def test_it_is_an_error_of_ours_with_an_exit_code() -> None:
    assert issubclass(RunError, ShantyError)
    assert RunError("it failed").exit_code == 70


def test_it_is_the_same_after_pickling(error: RunError) -> None:
    error.exit_code = 3
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert again.args == (error.what,)
    assert vars(again) == vars(error)
    assert str(again) == str(error)
