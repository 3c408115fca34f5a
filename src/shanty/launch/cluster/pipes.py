"""The pipes of a process, read and written side by side, with a bound on silence."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time

_CHUNK = 1 << 16
_KEPT = 4 << 10  # bytes of standard error that are kept


class SilenceError(Exception):
    """Nothing could be read or written for too long."""


class EndedError(Exception):
    """The process has closed its output, or reads no more."""


class Stream:
    """Talks with a process; to write never blocks on what it says meanwhile."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr  # a connection sees to it
        self.process = process
        self.sent = 0  # bytes written
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        self._waiting = bytearray()  # read, not asked for yet
        self._ended = False
        self._complaints = bytearray()
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def write(self, data: bytes | memoryview, patience: float) -> None:
        """Write all of it; SilenceError when not a byte moved for `patience` seconds."""
        if self._in.closed:  # given up after an earlier failure
            raise EndedError
        rest = memoryview(data)
        until = time.monotonic() + patience
        while rest:
            readable, writable = self._wait(until, writing=True)
            if readable:
                self._take()
            if writable:
                try:
                    done = os.write(self._in.fileno(), rest[:_CHUNK])
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise EndedError from error
                self.sent += done
                rest = rest[done:]
                until = time.monotonic() + patience

    def line(self, patience: float, longest: int = 64 << 20) -> bytes:
        """The next line, without its end; EndedError when there is none."""
        until = time.monotonic() + patience
        searched = 0
        while True:
            end = self._waiting.find(b"\n", searched)
            if end >= 0:
                found = bytes(self._waiting[:end])
                del self._waiting[: end + 1]
                return found
            searched = len(self._waiting)
            if self._ended or searched > longest:
                raise EndedError
            self._wait(until)
            self._take()

    def read(self, size: int, patience: float) -> bytes:
        """Exactly `size` bytes."""
        until = time.monotonic() + patience
        while len(self._waiting) < size:
            if self._ended:
                raise EndedError
            self._wait(until)
            if self._take():
                until = time.monotonic() + patience
        found = bytes(self._waiting[:size])
        del self._waiting[:size]
        return found

    def complaints(self) -> str:
        """The end of what the process wrote to its standard error."""
        if self.process.poll() is not None:
            # A shared connection that stays on may hold the pipe open: no end to wait for.
            self._listener.join(0.3)
        return bytes(self._complaints).decode(errors="replace").strip()

    def close(self, grace: float = 2.0) -> None:
        """Close the pipes and see the process end, by force after `grace` seconds."""
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._out.close()
        self._listener.join(0.3)
        if not self._listener.is_alive():
            self._err.close()

    def _wait(self, until: float, *, writing: bool = False) -> tuple[bool, bool]:
        """Wait for output, or also for room for input; says which of the two there is."""
        poll = select.poll()
        if not self._ended:
            poll.register(self._out.fileno(), select.POLLIN)
        if writing:
            poll.register(self._in.fileno(), select.POLLOUT)
        left = until - time.monotonic()
        ready = dict(poll.poll(max(0.0, left) * 1000))
        if not ready and left <= 0:
            raise SilenceError
        return self._out.fileno() in ready, self._in.fileno() in ready

    def _take(self) -> bool:
        try:
            data = os.read(self._out.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._waiting += data
        self._ended = self._ended or not data
        return bool(data)

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._err.fileno(), _CHUNK):
                self._complaints += data
                del self._complaints[:-_KEPT]
