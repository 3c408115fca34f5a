"""Deliberate mistakes: each ends in the right error on every rank there is, in bounded time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launches import FLAVOURS, all_passed, launch, run, told

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.sampled(6), pytest.mark.timeout(120)]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_mismatches(flavour: str, tmp_path: Path) -> None:
    """The ranks call different things: an error on all, with the lines of both, and on it goes."""
    done = run(tmp_path, flavour, 3, "torch_mistakes.py", SHANTY_CHECK="1")
    all_passed(done, "torch_mistakes.py")


FATAL = {
    # the ranks that are there to see an error, and words in the message of each
    "skips": ((0, 2), ("not all ranks came", "rank 1 is at", "in skips")),
    "exits": ((0, 2), ("will not come", "rank 1 has left")),
    "comes_late": ((0, 1, 2), ("gave up|not all ranks came",)),
    "ddp_without_one": ((0, 2), ("all_reduce", "rank 1 has left")),
    "monitored": ((0, 2), ("monitored_barrier()", "rank 1 is at", "in monitored")),
    "locks": ((0, 1, 2), ("can never complete", "waits in barrier|gave up: barrier")),
    "groups_crossed": ((0, 1, 2), ("can never complete", "on group 1", "on group 2")),
}
BOUND = 45  # seconds, also on a busy machine; the groups' own limit is 60


@pytest.mark.parametrize("mistake", FATAL)
def test_ranks_that_do_not_come(mistake: str) -> None:
    ranks, words = FATAL[mistake]
    done = launch(3, "torch_mistakes.py", mistake, str(len(ranks)), SHANTY_CHECK="1")
    told(done, ranks, *words, bound=BOUND)


def test_without_check_it_is_an_error_too() -> None:
    done = launch(3, "torch_mistakes.py", "skips", "2")
    assert done.returncode != 0
    assert done.stdout.count("not all ranks came") == 2, done.stdout + done.stderr
    assert "rank 1 gives no answer" in done.stdout


def test_a_rank_that_comes_while_it_is_given_up() -> None:
    """It comes as the others ask where it is, and must not wait for them in vain."""
    done = launch(3, "torch_mistakes.py", "comes_late", "3")
    told(done, (0, 1, 2), "not all ranks came")
    assert re.search("rank 1: .*rank [02] gave up", done.stdout), done.stdout
