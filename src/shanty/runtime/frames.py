"""Keeps the output of a rank: one text file a rank, a header before every line.

A line of the file is `<seconds since 1970> <stream>[+] <text>`, stream 1 for stdout and 2 for
stderr. A `+` says that the text is not the end of its line: the program wrote no newline yet
(a prompt, a last line without one) or the line is longer than `LONGEST`. Joining the texts of
a stream, with a newline after each that has no `+`, gives back every byte that was written,
with one exception. A line of text that is written over again and again by carriage returns, as a
bar of progress is, has its last state and about one a second; those between are left out.
A file has one writer and only grows, so a reader may stop and go on at any offset.
`logfile` reads it. Every rank imports this module before its program starts: keep it light.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

STDOUT = 1
STDERR = 2
LONGEST = 1 << 20  # bytes of one line that are kept back while its end has not come
_CHUNK = 1 << 18
_LAST_READS = 64
# What no terminal shows: all below the space but BEL, BS, TAB, LF, VT, FF, CR and ESC.
_CONTROLS = bytes(set(range(32)) - set(b"\a\b\t\n\v\f\r\x1b"))
_TERMINALS_MOST = 4096  # bytes that one read of a pseudo-terminal returns
STATE_EVERY = 1.0  # seconds between two states of a line that is written over
_LOOK_EVERY = 1.0  # seconds between two looks whether the log is there
TAIL = 64 << 10  # bytes kept from the end of a log that grew over its limit


class FrameWriter:
    """Frames what comes from a program's streams and appends it to a log file.

    At most `limit` bytes are written; of what comes after, only the last lines are kept and
    written by `close`, behind a line that says how much is missing.

    With its `path`, a log that is removed while it is written is put back, for which `fd` has to
    be open for reading, too. A log that another program cuts short gets a line that says so.
    """

    def __init__(self, fd: int, limit: int, path: str = "") -> None:
        self._fd = fd
        self._path = path
        self._size = os.fstat(fd).st_size if path else 0
        self._next_look = 0.0
        self._room = limit
        self._limit = limit
        self._pending: dict[int, list[bytes]] = {}
        self._next_state: dict[int, float] = {}  # when, of streams whose line is written over
        self._data = DataStreams()
        self._tail = b""
        self._dropped = 0
        self.error = ""

    def feed(self, stream: int, data: bytes) -> None:
        """Take `data` as read from `stream`; complete lines are in the file on return."""
        pending = self._pending.pop(stream, [])
        end = data.rfind(b"\n") + 1
        if end == 0:
            pending.append(data)
            self._begin(stream, pending)
            return
        pending.append(data[: end - 1])
        header = b"%.6f %d " % (time.time(), stream)
        self._write(header + b"".join(pending).replace(b"\n", b"\n" + header) + b"\n")
        self._next_state.pop(stream, None)
        if end < len(data):
            self._begin(stream, [data[end:]])

    def _begin(self, stream: int, begun: list[bytes]) -> None:
        """Keep a begun line back; if the line is written over, only its newest state."""
        self._pending[stream] = begun
        if b"\r" in begun[-1] and not self._data.has(stream, begun[-1]):
            begun[:] = [last_state(b"".join(begun))]
            if self._is_due(stream):
                self.flush(stream)
        elif sum(map(len, begun)) > LONGEST:
            self.flush(stream)

    def _is_due(self, stream: int) -> bool:
        return time.monotonic() >= self._next_state.get(stream, 0.0)

    @property
    def has_partial(self) -> bool:
        """Returns True when a line is kept back because its newline has not come."""
        return bool(self._pending)

    def flush(self, *streams: int) -> None:
        """Write the begun lines of `streams` as they stand; when none is given, all that are due.

        Not due is the new state of a line whose last one was written a moment ago.
        """
        for stream in streams or tuple(filter(self._is_due, self._pending)):
            text = b"".join(self._pending.pop(stream, []))
            if b"\r" in text or stream in self._next_state:
                self._next_state[stream] = time.monotonic() + STATE_EVERY
            if text:
                self._write(b"%.6f %d+ %s\n" % (time.time(), stream, text))

    def close(self) -> None:
        """Write what is kept back."""
        self.flush(*self._pending)
        if self._tail:
            lost = self._dropped - len(self._tail)
            note = f"... {lost} bytes left out: this log reached its limit of {self._limit} bytes"
            self._append(b"%.6f 2 [shanty] %s\n" % (time.time(), note.encode()))
            self._append(self._tail)
            self._tail = b""
        self._next_look = 0.0
        self._append(b"")

    def _append(self, framed: bytes) -> None:
        """Write, unless that failed once: then `error` says why and the rest is dropped."""
        if not self.error:
            try:
                if self._path and time.monotonic() >= self._next_look:
                    self._next_look = time.monotonic() + _LOOK_EVERY
                    self._keep()
                write_all(self._fd, framed)
                self._size += len(framed)
            except OSError as error:
                self.error = error.strerror or str(error)

    def _keep(self) -> None:
        """Put the log back if it was removed; note it if another program has cut it short."""
        ours = os.fstat(self._fd)
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self._put_back()
            return
        except OSError:  # a network file system that is away for a moment
            return
        if ours.st_nlink == 0 and (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            self._put_back()
        elif ours.st_size < self._size:
            text = f"{self._size - ours.st_size} bytes of this log were removed by another program"
            note = b"%.6f 2 [shanty] %s\n" % (time.time(), text.encode())
            write_all(self._fd, note)
            self._size = ours.st_size + len(note)

    def _put_back(self) -> None:
        """Copy the log, which is there as long as it is open, to its path, and go on with that."""
        before = os.umask(0o077)
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
        finally:
            os.umask(before)
        temporary = f"{self._path}.{os.getpid()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        new = os.open(temporary, flags, 0o644)
        try:
            offset = 0
            while data := os.pread(self._fd, _CHUNK, offset):
                write_all(new, data)
                offset += len(data)
            os.replace(temporary, self._path)
            os.dup2(new, self._fd, inheritable=False)
        finally:
            os.close(new)

    def _write(self, framed: bytes) -> None:
        if self._room >= len(framed):
            self._room -= len(framed)
            self._append(framed)
            return
        self._room = 0
        self._dropped += len(framed)
        kept = (self._tail + framed)[-TAIL:]
        if len(kept) < len(self._tail) + len(framed):
            kept = kept[kept.find(b"\n") + 1 :]
        self._tail = kept


def last_state(line: bytes) -> bytes:
    """Return what is left of a line that was written over: it begins with the carriage return."""
    at = line.rstrip(b"\r").rfind(b"\r")
    return line[at:] if at > 0 else line


class DataStreams:
    """Knows the streams of data, as of `gzip -c`, of which nothing may be left out."""

    def __init__(self) -> None:
        self._known: set[object] = set()

    def has(self, stream: object, data: bytes) -> bool:
        """Return True if `data`, or what came before from the stream, is something else than text.

        Text of an 8-bit encoding counts as data.
        """
        if stream not in self._known and not _is_text(data):
            self._known.add(stream)
        return stream in self._known


def _is_text(data: bytes) -> bool:
    """Return True for UTF-8, perhaps cut at its end, without control characters but a terminal's.

    Text of an 8-bit encoding has letters below them, and counts as data: all of it is kept.
    """
    if data.translate(None, _CONTROLS) != data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to the descriptor `fd`."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Output:
    """The pipes on which children write; `take` is given a child, the stream and the bytes."""

    def __init__(self, take: Callable[[Any, int, bytes], None]) -> None:
        self._take = take
        self.streams: dict[int, tuple[Any, int]] = {}  # descriptor → child and stream

    def open(
        self,
        child: Any,
        streams: tuple[int, ...] = (STDOUT, STDERR),
        stdout: Callable[[], tuple[int, int]] = os.pipe,
    ) -> tuple[list[int], list[tuple[int, ...]]]:
        """Pipes for one child: the ends that it writes to, and how it is spawned with them.

        `stdout` makes what stands for its standard output, a pipe or a pseudo-terminal.
        """
        ends: list[int] = []
        actions: list[tuple[int, ...]] = []
        for stream in streams:
            read, write = stdout() if stream == STDOUT else os.pipe()
            os.set_blocking(read, False)
            self.streams[read] = (child, stream)
            ends.append(write)
            actions.append((os.POSIX_SPAWN_DUP2, write, stream))
        return ends, actions

    def pump(self, fd: int) -> bool:
        """Take what a child wrote; False when the stream has ended, and is closed."""
        if self._read(fd) != 0:
            return True
        del self.streams[fd]
        os.close(fd)
        return False

    def finish(self, child: Any) -> None:
        """Take the last output of a child that has ended; the pipes stay open.

        All that the child wrote is in them by now; the bound is for a helper that it left behind
        and that goes on writing.
        """
        for fd, (owner, _) in self.streams.items():
            for _ in range(_LAST_READS):
                if owner != child or not self._read(fd):
                    break

    def _read(self, fd: int) -> int | None:
        """Take what there is now; how much, 0 at the end of the stream, None when it is empty."""
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < _CHUNK:
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                break
            except OSError as error:  # so ends a pseudo-terminal
                if error.errno != errno.EIO:
                    raise
                data = b""
            if not data and not pieces:
                return 0
            pieces.append(data)
            if not 0 < len(data) <= _TERMINALS_MOST:
                break
        if not pieces:
            return None
        self._take(*self.streams[fd], b"".join(pieces))
        return sum(map(len, pieces))
