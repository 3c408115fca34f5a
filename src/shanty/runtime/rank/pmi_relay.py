"""Relays the PMI socket between a rank and its launcher, and delays MPI_Abort.

Hydra kills all processes of a run by SIGKILL within a millisecond of a rank's `cmd=abort`, and
`rank.exec` with them: what the rank had printed before, such as why it aborts, was lost in half of
the runs. So `rank.exec` relays the messages, and writes the output before it forwards an abort.

The protocol is PMI's wire protocol, version 1 or 2, on the socket `PMI_FD`; the message is
`cmd=abort exitcode=3`, or the like.
"""

from __future__ import annotations

import os
import select
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

_ABORT = b"cmd=abort"
_READ_SIZE = 1 << 16


class Relay:
    """Stands in for the launcher's end of the socket `fd` until one of the two closes its own."""

    def __init__(self, fd: int, before_abort: Callable[[], None]) -> None:
        from _socket import socketpair  # `socket` takes milliseconds to import

        rank, end = (each.detach() for each in socketpair())
        launcher = os.dup(fd)
        os.dup2(end, fd, inheritable=True)
        os.close(end)
        self._other = {rank: launcher, launcher: rank}
        self._rank, self._end = rank, fd
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
        """Forward what has come from one side; False once, when either has closed its end.

        The rank then learns that the launcher has ended. The launcher learns of the rank by the end
        of `rank.exec`.
        """
        if self._closed:
            return True
        try:
            data = os.read(fd, _READ_SIZE)
        except OSError:
            data = b""
        if fd == self._rank and _ABORT in data:
            self._before_abort()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._other[fd], view) :]
        except OSError:  # the other side has ended
            data = b""
        if not data:
            self._closed = True
            os.close(self._rank)
        return bool(data)

    def finish(self) -> None:
        """Forward what the rank had sent before it ended."""
        poll = select.poll()
        poll.register(self._rank, select.POLLIN)
        while not self._closed and poll.poll(0):
            self.pump(self._rank)


def between(environ: Mapping[str, str], before_abort: Callable[[], None]) -> Relay | None:
    """Return the relay of this rank; None where its launcher has not opened `PMI_FD`."""
    try:
        fd = int(environ.get("PMI_FD", ""))
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):  # left over from another launcher
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return Relay(fd, before_abort)
