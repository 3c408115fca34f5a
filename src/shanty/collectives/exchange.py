"""Exchanges outside of any request: when the ranks start, and about process sets.

The calling thread makes them, over a communicator that nothing else uses. Rank 0 collects the value
of every rank and sends all values to all; if some ranks do not come, it sends the others their
numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.settings import Settings

if TYPE_CHECKING:
    from mpi4py import MPI

Value = TypeVar("Value")

_SPIN = 0.001  # seconds of looking without a rest: others are mostly there at once
_REST = 0.002  # seconds between two looks after that
_GRACE = 5.0  # seconds that rank 0 gets to report missing ranks before others report themselves
_THERE, _BACK = 1, 2  # tags: to rank 0, and from it


class Patience:
    """A wait for other ranks that warns when it lasts long, and ends if the settings ask for that.

    words: what it waits for. grace: seconds by which warning and end come later.
    """

    def __init__(self, settings: Settings, words: Callable[[], str], grace: float = 0.0) -> None:
        self._settings = settings
        self._words = words
        self._grace = grace
        self._start = self._warned = time.monotonic()

    def pause(self) -> bool:
        """Rest between two looks; returns whether it has just warned.

        Raises HorovodInternalError when HOROVOD_STALL_SHUTDOWN_TIME_SECONDS are over.
        """
        now = time.monotonic()
        waited = now - self._start
        limit = self._settings.stall_shutdown
        if self._settings.stall_check:
            if 0 < limit <= waited - self._grace:
                raise HorovodInternalError(
                    f"{self._words()}: given up after {waited:.0f} s "
                    "(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)."
                )
            if now - self._warned >= self._settings.stall_warning + self._grace:
                self._warned = now
                text = f"{self._settings.name}: stalled: {self._words()}, for {waited:.0f} s now."
                print(text, file=sys.stderr, flush=True)
                return True
        time.sleep(0 if waited < _SPIN else _REST)
        return False


def exchange(comm: MPI.Intracomm, value: Value, call: str, settings: Settings) -> list[Value]:
    """Return what each rank of `comm` passed, in the order of ranks. Collective over them.

    call: the call that waits, for messages. Warns when ranks do not come; raises
    HorovodInternalError after HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.
    """
    if comm.size == 1:
        return [value]
    if comm.rank == 0:
        return _collect(comm, value, call, settings)
    sent = comm.isend(value, 0, _THERE)
    answer: Any = (0,)  # of rank 0: the ranks missing so far, an error, or all values
    while isinstance(answer, tuple):
        patience = Patience(settings, partial(_waits_for, call, answer), _GRACE)
        while (message := comm.improbe(0, _BACK)) is None:
            patience.pause()
        answer = message.recv()
    if isinstance(answer, str):
        raise HorovodInternalError(answer)
    sent.wait()
    values: list[Value] = answer
    return values


def _collect(comm: MPI.Intracomm, value: Value, call: str, settings: Settings) -> list[Value]:
    from mpi4py import MPI

    values = {0: value}

    def missing() -> tuple[int, ...]:
        return tuple(each for each in range(comm.size) if each not in values)

    def send(answer: tuple[int, ...] | str | list[Value]) -> None:
        MPI.Request.waitall([comm.isend(answer, each, _BACK) for each in values if each != 0])

    patience = Patience(settings, lambda: _waits_for(call, missing()))
    status = MPI.Status()
    while len(values) < comm.size:
        message = comm.improbe(tag=_THERE, status=status)
        if message is not None:
            source = status.Get_source()
            values[source] = message.recv()
            continue
        try:
            if patience.pause():
                send(missing())
        except HorovodInternalError as error:
            send(str(error))
            raise
    ordered = [values[each] for each in range(comm.size)]
    send(ordered)
    return ordered


def wait(request: MPI.Request, words: str, settings: Settings) -> None:
    """Wait for an operation of MPI that needs other ranks. Warns, and raises as `exchange`."""
    patience = Patience(settings, lambda: words)
    while not request.Test():
        patience.pause()


def _waits_for(call: str, missing: Iterable[Any]) -> str:
    names = ", ".join(map(str, missing))
    return f"{call}, which all ranks must call, waits for rank{'s' * (',' in names)} {names}"
