"""`Inbox`: what the threads of a script have submitted, and the engine has not taken yet."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shanty.torch.hvd.notes import Note
from shanty.torch.hvd.requests import DuplicateNameError, HorovodInternalError, Kind, Op, Request

if TYPE_CHECKING:
    from shanty.torch.hvd.engine import Engine

_UNNAMED = 128  # unnamed requests of a kind under way at a time; the next ones wait their turn


class Inbox:
    """For any threads that put in, and an engine, one thread of which at a time takes out.

    enough: bytes that are worth waking its own thread for. nbytes: that were put in since somebody
    set it to 0. latest: when the last of them were, by time.monotonic(). names: of the named
    requests under way, by kind; who ends one discards its name.
    """

    def __init__(self, engine: Engine, enough: float) -> None:
        self.enough = enough
        self.nbytes = 0
        self.latest = 0.0
        self.names: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        self._engine = engine
        self._weighs = enough < math.inf
        self._counts = dict.fromkeys(Kind, 0)  # of unnamed requests
        self._requests: deque[Request] = deque()
        self._notes: list[Note] = []
        self._noted = self.names[Kind.ALLREDUCE]
        self._since = 0.0  # when the first note was put in
        self._asleep = False
        self._bell = threading.Lock()  # what the engine's thread sleeps on
        self._bell.acquire()
        self._closed: HorovodInternalError | None = None
        self._rejecting = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._requests or self._notes)

    # ---- for callers -----------------------------------------------------------------------

    def put(self, request: Request) -> None:
        """One more, which gets a name where it has none.

        Raises HorovodInternalError when one of the same name is under way, or after `close`.
        """
        kind = request.kind
        self._check_open(kind)
        if request.name is None:
            count = self._counts[kind]
            self._counts[kind] = count + 1
            request.name = f"noname.{count % _UNNAMED}"
        elif request.name in self.names[kind]:
            raise _taken(str(request))
        else:
            self.names[kind].add(request.name)
        request.label = request.name, kind
        request.since = time.monotonic()
        request.engine = self._engine
        if request.tensors and request.tensors[0].is_cuda:
            request.ready = torch.cuda.current_stream().record_event()
        self._requests.append(request)
        self._weigh(request.nbytes)
        if self._asleep:
            self.ring()
        if self._closed is not None:
            self.reject()

    def note(self, name: str, tensor: Tensor, op: Op) -> Note:
        """The same of an allreduce of one tensor in place, in host memory; not of Adasum.

        Thousands of them may be made in a step: what can be done later is not done here.
        """
        names, notes = self._noted, self._notes
        self._check_open(Kind.ALLREDUCE)
        if name in names:
            raise _taken(f"{Kind.ALLREDUCE}.{name}")
        names.add(name)
        if not notes:
            self._since = time.monotonic()
        made = Note(name, tensor, op, self._engine)
        notes.append(made)
        if self._weighs:
            self._weigh(tensor.nbytes)
        if self._asleep:
            self.ring()
        if self._closed is not None:
            self.reject()
        return made

    def ring(self) -> None:
        """Wake the engine's thread."""
        self._asleep = False
        with suppress(RuntimeError):  # awake: it will look before it sleeps
            self._bell.release()

    # ---- for the engine ----------------------------------------------------------------------

    @property
    def since(self) -> float:
        """When the first note was put in that was not taken yet, by time.monotonic(); else 0."""
        if self._notes and not self._since:  # one that came while others were taken
            self._since = time.monotonic()
        return self._since

    def take(self) -> Request | None:
        """The next one of the requests."""
        try:
            return self._requests.popleft()
        except IndexError:
            return None

    def take_notes(self) -> tuple[list[Note], float]:
        """All notes so far, and when the first of them was put in.

        Take requests before: then none of them has come after a note that is left.
        """
        since, self._since = self._since, 0.0
        taken = self._notes[:]
        del self._notes[: len(taken)]  # and none that has come meanwhile
        return taken, since or time.monotonic()

    def sleep(self, seconds: float, *, lightly: bool) -> None:
        """Until the bell rings. lightly: it need not for what is put in."""
        self._asleep = not lightly
        if lightly or not self:
            self._bell.acquire(timeout=seconds)
        self._asleep = False

    def close(self, error: HorovodInternalError) -> None:
        """Whatever is in here, or comes, fails with this error."""
        self._closed = error
        self.reject()

    def reject(self) -> None:
        """Fail what has come all the same: this is called on both sides."""
        with self._rejecting:
            notes, since = self.take_notes()
            late = [*iter(self.take, None), *(each.request(since) for each in notes)]
            for request in late:
                request.finish(HorovodInternalError(f"{request} failed: {self._closed}"))

    def _check_open(self, kind: Kind) -> None:
        if self._closed is not None:
            raise HorovodInternalError(f"{kind.value} failed: {self._closed}")

    def _weigh(self, nbytes: int) -> None:
        self.latest = time.monotonic()
        before = self.nbytes
        self.nbytes = after = before + nbytes
        if before < self.enough <= after:
            self.ring()


def _taken(name: str) -> DuplicateNameError:
    return DuplicateNameError(
        f"{name} is under way already: a name can be used again when its request has ended "
        "(synchronize). Give each tensor a name of its own."
    )
