"""Facts of a host for the doctor to judge: the verb `health`.

Every question stands alone: one that fails leaves its answer empty and no other behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from shanty.runtime.mpi.parameters import settings
from shanty.runtime.rpc import Ask, Data, Say
from shanty.runtime.rpc.leftovers import files_left, orphans

_NAMES = 2.0  # seconds for name servers; a dead one lets getaddrinfo wait for up to thirty
_AT_ONCE = 16  # names that are looked up side by side
_SHOWN = 200  # characters of a value


def health(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`[names]`: all that the survey does not say.

    `resolves` has the addresses that each of `names`, and the host's own name, means here: an
    empty list for an unknown name, None where there was no answer in time. `rights` are
    `[path, mode, owner]` of the home and of what sshd reads there. `settings` are `[name, value,
    place]`; the place is a file, or "" for the environment of a login. `leftovers` are the files
    of MPI jobs that nobody has open, `orphans` the processes of runs that ended. `time` is this
    host's clock at the end, `took` the seconds since the question came.
    """
    began = time.monotonic()
    own = socket.gethostname()
    names = Names([own, *ask.get("names", ())])
    values: Dict[str, Any] = {
        "hostname": own,
        "rights": list(rights()),
        "settings": [[name, value[:_SHOWN], place] for name, value, place in settings(os.environ)],
        "leftovers": files_left(),
        "orphans": orphans(),
    }
    values["resolves"] = names.answers(began + _NAMES)
    return {**values, "took": time.monotonic() - began, "time": time.time()}


class Names:
    """Looks names up, some side by side; a name server that is dead delays nobody."""

    def __init__(self, names: Iterable[str]) -> None:
        self._found: Dict[str, Optional[List[str]]] = dict.fromkeys(names)
        self._waiting = deque(self._found)
        # Daemons, and no pool: a pool's threads would be waited for when this process ends.
        count = min(_AT_ONCE, len(self._found))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while self._waiting:
            with contextlib.suppress(IndexError):  # another thread has taken the last
                name = self._waiting.popleft()
                try:
                    found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
                    self._found[name] = sorted({str(entry[4][0]) for entry in found})
                except (OSError, UnicodeError):  # the latter for what no name can be
                    self._found[name] = []

    def answers(self, until: float) -> Dict[str, Optional[List[str]]]:
        """The answers that came until time.monotonic() is `until`; None for the others."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._waiting.clear()
        return dict(self._found)


def rights() -> Iterator[Tuple[str, int, int]]:
    """Path, mode and owner of each file or folder that sshd wants to be the user's alone."""
    home = os.path.expanduser("~")
    for path in (home, f"{home}/.ssh", f"{home}/.ssh/authorized_keys"):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            yield path, status.st_mode & 0o7777, status.st_uid
