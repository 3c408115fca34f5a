"""Deliberate mistakes in Horovod's API: each ends in the right error on every rank, in time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from chrome_trace import lanes, read
from launches import FLAVOURS, Done, Launches, launch, run, told

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.sampled(6), pytest.mark.timeout(120)]

BOUND = 30  # seconds, also on a busy machine
DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
STALLS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_mistakes_after_which_it_goes_on(launches: Launches, flavour: str) -> None:
    launches.check(flavour, 3, "torch", "mistakes", "hvd_mistakes", **DYNAMIC)


class Expected(NamedTuple):
    """What a mistake leads to; `words` are patterns in the message of each of `ranks`."""

    ranks: tuple[int, ...]
    words: tuple[str, ...]
    environment: dict[str, str]
    warning: tuple[str, ...] = ()  # patterns in what the run says on stderr


FATAL = {
    "never_comes": Expected((0, 2), ("late.grad", "rank 1"), STALLS, ("late.grad", "rank 1")),
    "never_comes_to_a_set": Expected(
        (0, 2), ("in.set|of.all", "rank 1"), STALLS | DYNAMIC, ("in.set",)
    ),
    "crossed": Expected((0, 1, 2), ("wait for each other", r"reduce\.a", r"reduce\.b"), {}),
    "other_kind": Expected(
        (0, 1, 2), ("wait for each other", r"allreduce\.k", r"rank 1 .*allgather\.k"), {}
    ),
    "held_back": Expected(
        (0, 1, 2), ("wait for each other", r"rank 0 .*barrier", r"rank 1 .*allreduce\.noname"), {}
    ),
    "misses_the_set": Expected((0, 2), ("add_process_set", "rank 1"), STALLS, ("add_process_set",)),
    "exits": Expected((0, 2), ("rank 1",), {}),
    "shuts_down": Expected((0, 2), ("rank 1", "shutdown"), {}),
    "leaves_the_loop": Expected((0, 2), ("rank 1",), {}),
    "misses_the_broadcast": Expected((0,), ("ranks 1, 2",), {}),
    "others_have_joined": Expected((0, 2), ("rank 1",), {}),
}


@pytest.mark.parametrize("mistake", [each for each in FATAL if each != "exits"])
def test_ranks_that_do_not_come(mistake: str) -> None:
    expected = FATAL[mistake]
    count = str(len(expected.ranks))
    done = launch(3, "hvd_fatal.py", mistake, count, **expected.environment)
    errors(done, expected)
    for word in expected.warning:
        assert re.search(word, done.stderr), done.stderr


def errors(done: Done, expected: Expected) -> None:
    told(done, expected.ranks, *expected.words, kind="HorovodInternalError", bound=BOUND)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_rank_that_ends_its_script_on_every_mpi(flavour: str, tmp_path: Path) -> None:
    done = run(tmp_path, flavour, 3, "hvd_fatal.py", "exits", "2")
    errors(done, FATAL["exits"])


def test_a_rank_that_is_only_late() -> None:
    """It is said who is missing, and for what; then all is well."""
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    done = launch(3, "hvd_fatal.py", "comes_after_the_warning", "0", **stall)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is through") == 3, done.stdout
    assert re.search(r"late\.grad", done.stderr), done.stderr
    assert re.search(r"\b1\b", done.stderr), done.stderr


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_rank_that_raises(flavour: str, tmp_path: Path) -> None:
    """The run ends with its exit code and its traceback, though the others wait."""
    done = run(tmp_path, flavour, 3, "hvd_fatal.py", "raises", "3")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ArithmeticError: deliberate" in done.stderr


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_rank_that_is_killed(flavour: str, tmp_path: Path) -> None:
    """The run ends, with a timeline that can be read."""
    timeline = tmp_path / "timeline.json"
    environment = {"HOROVOD_TIMELINE": str(timeline)}
    done = run(tmp_path, flavour, 3, "hvd_fatal.py", "is_killed", "3", **environment)
    assert done.returncode == 137, done.stdout + done.stderr
    assert re.search("rank 1", done.stderr), done.stderr
    assert "allreduce.grad.w" in lanes(read(timeline))
