"""What is said of a signal for the ranks, and the names that signals have."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from shanty.client.signals import passed_on, signal_of
from shanty.launch.targets.base import Reply
from shanty.runtime.errors import LostError, UsageError


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(True, reached=[0, 1]), "SIGUSR1 was passed on to ranks 0, 1"),
        (Reply(True, reached=[0], without=[1, 2]), "; ranks 1, 2 have no handler for it"),
        (Reply(True, without=[0]), "no rank has a handler for it, and it would end the ranks"),
        (Reply(False, "the run has ended"), "SIGUSR1 was not passed on: the run has ended"),
        (LostError("its host is away"), "SIGUSR1 was not passed on: its host is away"),
    ],
)
def test_it_is_said_which_ranks_got_it(reply: Any, text: str) -> None:
    def answer(_run: object, _number: int) -> Reply:
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, Reply)
        return reply

    targets: Any = SimpleNamespace(signal=answer)
    said, reached = passed_on(targets, targets, signal.SIGUSR1)
    assert text in said
    assert reached == getattr(reply, "reached", [])


def test_names_and_numbers() -> None:
    assert {signal_of(word) for word in ("USR1", "sigusr1", "10")} == {signal.SIGUSR1}
    for wrong in ("USR3", "0", "999"):
        with pytest.raises(UsageError):
            signal_of(wrong)
