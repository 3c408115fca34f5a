"""Carries messages (`messages`) between controller and node agent, over a pair of descriptors.

Neither end ever waits for the other: what cannot be written yet is kept and written later, so
that an agent whose peer is cut off goes on counting the seconds.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Iterable, Iterator, List, Sequence

from shanty.runtime.messages import Malformed, NotAMessageError, decode, encode
from shanty.runtime.record_reader import MisfitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from shanty.runtime.messages import Message

    Received = Union[Message, Malformed]


def readable(fds: Iterable[int], seconds: float) -> List[int]:
    """Those of `fds` that have something to read, or have ended; waits so long for the first.

    By poll(2), as there may be more of them than select(2) can count.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(seconds * 1000)]


class Channel:
    """One end of the line; `open` turns False when the other end is gone.

    Any thread may send; one receives.
    """

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.sink = sink
        self.open = True
        self._rest = b""
        self._put_back: List[Received] = []
        self._unsent = bytearray()
        self._sending = threading.Lock()
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    @property
    def unsent(self) -> int:
        """The number of bytes that wait to be written."""
        return len(self._unsent)

    def send(self, message: Message) -> None:
        """Send a message, now or as soon as there is room."""
        line = encode(message)
        with self._sending:
            if self.open:
                self._unsent += line
                self._write()

    def flush(self) -> None:
        """Write what there is room for."""
        with self._sending:
            self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self.sink, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.open = False
            self._unsent.clear()

    def drain(self, seconds: float) -> bool:
        """Write all that waits; False when that took too long or the other end is gone."""
        deadline = time.monotonic() + seconds
        while self._unsent and time.monotonic() < deadline:
            poll = select.poll()
            poll.register(self.sink, select.POLLOUT)
            poll.poll(100)
            self.flush()
        return self.open and not self._unsent

    def receive(self) -> List[Received]:
        """Return the messages that have come; a line that is not JSON is passed over."""
        parts = [self._rest]
        while True:
            try:
                data = os.read(self.source, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.open = False
                break
            parts.append(data)
        *lines, self._rest = b"".join(parts).split(b"\n")
        before, self._put_back = self._put_back, []
        return [*before, *_decoded(lines)]

    def put_back(self, messages: Sequence[Received]) -> None:
        """Leave messages for the next call of `receive`."""
        self._put_back[:0] = messages

    def close(self) -> None:
        """Close both descriptors."""
        with self._sending:
            self.open = False
            self._unsent.clear()
            for fd in {self.source, self.sink}:
                os.close(fd)


def _decoded(lines: Iterable[bytes]) -> Iterator[Received]:
    for line in lines:
        try:
            yield decode(line)
        except NotAMessageError:
            continue
        except MisfitError as error:
            yield Malformed(str(error))
