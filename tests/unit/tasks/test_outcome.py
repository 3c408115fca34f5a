"""What ranks have returned or raised, as files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from shanty.runtime.rundir import RunDir
from shanty.tasks import outcome
from shanty.tasks.errors import RemoteTraceback


class CodedError(Exception):
    """Its __init__ takes other arguments than Exception gets."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} ({code})")
        self.code = code


class WordlessError(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


class OddError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("never")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def back(run: RunDir, error: BaseException) -> BaseException:
    """The exception after its way."""
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001  any exception
        outcome.write_error(run, 1, raised)
    found = outcome.read_error(run, 1, "rank 1 on b")
    assert found is not None
    return found


def test_values(run: RunDir) -> None:
    outcome.write_value(run, 0, {"a": [1, None]}, "it")
    assert outcome.read_value(run, 0) == {"a": [1, None]}
    assert [path.name for path in run.results.iterdir()] == ["value-0.pickle"]
    with pytest.raises(FileNotFoundError):
        outcome.read_value(run, 1)


def test_attempts_have_their_own(run: RunDir) -> None:
    back(run, ValueError("the first attempt"))
    second = RunDir(run.path, 2)
    assert outcome.read_error(second, 1, "rank 1") is None
    outcome.write_value(second, 0, 2, "it")
    assert not outcome.value_file(run, 0).exists()


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("a"), OSError(2, "gone", "file"), UnicodeError("x")]
)
def test_exceptions_come_back_as_themselves(run: RunDir, error: Exception) -> None:
    found = back(run, error)
    assert (type(found), found.args, str(found)) == (type(error), error.args, str(error))


def test_those_with_arguments_of_their_own(run: RunDir) -> None:
    error = CodedError(7, "no data")
    error.add_note("a note")
    found = back(run, error)
    assert isinstance(found, CodedError)
    assert (found.code, str(found), found.__notes__) == (7, "no data (7)", ["a note"])


def test_what_cannot_be_pickled_of_one_is_left_out(run: RunDir) -> None:
    error = CodedError(7, "locked")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    found = back(run, error)
    assert isinstance(found, CodedError)
    assert found.code == 7
    assert not hasattr(found, "lock")


def test_one_that_cannot_be_pickled_is_named(run: RunDir) -> None:
    class LocalError(OddError):
        pass

    found = back(run, LocalError(threading.Lock()))
    assert type(found) is RuntimeError
    assert str(found).startswith("rank 1 on b raised")
    assert "LocalError" in str(found)


def test_one_whose_text_cannot_be_made(run: RunDir) -> None:
    assert type(back(run, WordlessError(3))) is WordlessError


def test_the_traceback_of_the_rank_is_the_cause(run: RunDir) -> None:
    def function() -> None:
        raise KeyError("a")

    try:
        function()
    except KeyError as error:
        outcome.write_error(run, 0, error)
    found = outcome.read_error(run, 0, "rank 0 on a")
    assert found is not None
    assert isinstance(found.__cause__, RemoteTraceback)
    text = str(found.__cause__)
    assert text.startswith("\nrank 0 on a:\nTraceback")
    assert 'raise KeyError("a")' in text


def test_damaged(run: RunDir) -> None:
    run.results.mkdir(parents=True)
    (run.results / "error-0.pickle").write_bytes(b"\x80\x05damaged")
    assert outcome.read_error(run, 0, "rank 0") is None
