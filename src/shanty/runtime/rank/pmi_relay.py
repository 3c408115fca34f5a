"""Passes on what a rank and its launcher say to each other, and delays an MPI_Abort.

A launcher that follows PMI (Hydra, srun) kills all ranks by SIGKILL within a millisecond of the
rank's `cmd=abort`, and `rank.exec` with them: what the rank had printed before, such as why it
aborts, was lost in half of the runs. So `rank.exec` stands in between, and has the output written
before it passes the word on.

The protocol is PMI's wire protocol, version 1 or 2: the rank and the launcher share the socket
`PMI_FD`, and the command stands at the front of a message, as `cmd=abort exitcode=3`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

_ABORT = b"cmd=abort"
_MOST = 1 << 16  # bytes of one read


class Relay:
    """Stands in for the launcher's end of `PMI_FD` until one of the two closes its own."""

    def __init__(self, number: int, before_abort: Callable[[], None]) -> None:
        from _socket import socketpair  # `socket` takes milliseconds to import

        rank, end = (each.detach() for each in socketpair())
        launcher = os.dup(number)
        os.dup2(end, number, inheritable=True)
        os.close(end)
        self._other = {rank: launcher, launcher: rank}
        self._rank, self._end = rank, number
        self._before_abort = before_abort
        self._closed = False

    @property
    def fds(self) -> list[int]:
        """Returns the descriptors to wait for."""
        return [*self._other]

    def close_ranks_end(self) -> None:
        """Leave the end to the rank, which has been started with it."""
        os.close(self._end)

    def pump(self, fd: int) -> bool:
        """Pass on what has come from one side; False once, when either has closed its end.

        The rank then learns that the launcher has ended. The launcher learns of the rank by the end
        of `rank.exec`.
        """
        if self._closed:
            return True
        try:
            data = os.read(fd, _MOST)
            if fd == self._rank and _ABORT in data:
                self._before_abort()
            view = memoryview(data)
            while view:
                view = view[os.write(self._other[fd], view) :]
        except OSError:  # the other side has ended
            data = b""
        if not data:
            self._closed = True
            os.close(self._rank)
        return bool(data)


def between(environ: Mapping[str, str], before_abort: Callable[[], None]) -> Relay | None:
    """Return the relay of this rank; None where its launcher has not opened `PMI_FD`."""
    try:
        number = int(environ.get("PMI_FD", ""))
        os.fstat(number)
    except (ValueError, OSError):
        return None
    return Relay(number, before_abort)
