"""Signals for the ranks of a run, and what became of them, in words."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from shanty.launch.targets.registry import Targets
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.errors import ShantyError, UsageError
from shanty.runtime.rundir import RunDir
from shanty.runtime.suggestions import closest


def passed_on(targets: Targets, run: RunDir, number: signal.Signals) -> tuple[str, list[int]]:
    """Send a signal to the ranks that have a handler; return what to say, and these ranks."""
    try:
        reply = targets.signal(run, number)
    except ShantyError as error:
        return f"{number.name} was not passed on: {error}", []
    if not reply.ok:
        return f"{number.name} was not passed on: {reply.error}", []
    return _text(number.name, reply.reached, reply.without), reply.reached


def _text(name: str, reached: Sequence[int], without: Sequence[int]) -> str:
    if not reached:
        return f"{name} was not passed on: no rank has a handler for it, and it would end the ranks"
    text = f"{name} was passed on to {named(list(reached))}"
    if without:
        has = "has" if len(without) == 1 else "have"
        text += f"; {named(list(without))} {has} no handler for it"
    return text


def signal_of(word: str) -> signal.Signals:
    """Return the signal with a name (USR1, SIGUSR1) or number; UsageError for another word."""
    name = word.upper() if word.upper().startswith("SIG") else f"SIG{word.upper()}"
    try:
        return signal.Signals(int(word)) if word.isdigit() else signal.Signals[name]
    except (KeyError, ValueError):
        known = [each.name for each in signal.Signals]
        near = closest(name, known)
        raise UsageError(
            f"unknown signal {word!r}", fix=f"did you mean {near[3:]}?" if near else "see: kill -l"
        ) from None
