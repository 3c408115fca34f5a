"""`Inbox`: what the threads of a script have submitted, and the engine has not taken yet."""

from __future__ import annotations

import time
from collections import deque

from shanty.torch.hvd.notes import Note
from shanty.torch.hvd.requests import DuplicateNameError, Kind, Request

_UNNAMED = 128  # unnamed requests of a kind under way at a time; the next ones wait their turn


class Inbox:
    """For any threads that put in, and one at a time that takes out.

    names: of the named requests under way, by kind; who ends one discards its name. nbytes: put in
    since somebody set it to 0. enough: of them, when it is time. latest: when the last ones came.
    """

    def __init__(self, enough: float) -> None:
        self.names: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        self.enough = enough
        self.nbytes = 0
        self.latest = 0.0
        self._since = 0.0  # when the first note was put in
        self._weighs = enough < float("inf")
        self._reductions = self.names[Kind.ALLREDUCE]
        self._counts = dict.fromkeys(Kind, 0)  # of unnamed requests
        self._requests: deque[Request] = deque()
        self._notes: list[Note] = []

    def __bool__(self) -> bool:
        return bool(self._requests or self._notes)

    @property
    def since(self) -> float:
        """When the first note was put in that was not taken yet, by time.monotonic(); else 0."""
        if self._notes and not self._since:  # one that came while others were taken
            self._since = time.monotonic()
        return self._since

    def put(self, request: Request) -> bool:
        """One more, which gets a name where it has none; whether there are enough with it.

        Raises DuplicateNameError where one of the same name is under way.
        """
        kind = request.kind
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
        self._requests.append(request)
        return self._weigh(request.nbytes)

    def note(self, note: Note) -> bool:
        """The same of a note."""
        name, names, notes = note.name, self._reductions, self._notes
        if name in names:
            raise _taken(str(note))
        names.add(name)
        if not notes:
            self._since = time.monotonic()
        notes.append(note)
        return self._weighs and self._weigh(note.tensor.nbytes)

    def take(self) -> Request | None:
        """The next one of the requests."""
        try:
            return self._requests.popleft()
        except IndexError:
            return None

    def take_notes(self) -> tuple[list[Note], float]:
        """All notes so far, and when the first of them was put in.

        Ask for requests before: what is taken then has come after all notes that are left.
        """
        since, self._since = self.since, 0.0
        taken = self._notes[:]
        del self._notes[: len(taken)]  # and none that has come meanwhile
        return taken, since

    def _weigh(self, nbytes: int) -> bool:
        self.latest = time.monotonic()
        before = self.nbytes
        self.nbytes = after = before + nbytes
        return before < self.enough <= after


def _taken(name: str) -> DuplicateNameError:
    return DuplicateNameError(
        f"{name} is under way already: a name can be used again when its request has ended "
        "(synchronize). Give each tensor a name of its own."
    )
