"""Output that the user's own line sends elsewhere: `mpirun … > file`, `mpirun … | sort`.

It must not go to the run's logs. Nor should it go through the launcher, which may tear lines:
on the launcher's host a rank opens what stands behind the launcher's descriptor and appends
whole lines to it. Elsewhere it inherits the launcher's stream.
"""

from __future__ import annotations

import os

from shanty.runtime.frames import write_all

VARIABLE = "SHANTY_PASS"
NOTHING = "-"  # stands for an empty value in a command line


def offer(streams: str) -> str:
    """The value of VARIABLE for a launcher with our pid that has `streams` sent elsewhere."""
    return f"{os.uname().nodename}|{os.getpid()}|{streams}" if streams else ""


def redirected(ours: str) -> str:
    """Which of the streams 1 and 2 the user's line sends elsewhere than to the run's logs.

    `ours` names the files behind the streams that the node agent gave to the command. What the
    ranks write to another (a pipe to sort, a file) has to go through the launcher to get there.
    """
    return "".join(str(fd) for fd in (1, 2) if file_identity(fd) not in ours.split())


def file_identity(fd: int) -> str:
    """What tells the file behind a descriptor from others; "" when it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"


class Passed:
    """The streams of a rank that are sent elsewhere, as `offered` says."""

    def __init__(self, offered: str) -> None:
        host, _, rest = offered.partition("|")
        pid, _, streams = rest.partition("|")
        self.inherited: set[int] = set()
        self._files: dict[int, int] = {}
        self._begun: dict[int, bytes] = {}
        for stream in map(int, streams):
            try:
                if host != os.uname().nodename:
                    raise FileNotFoundError
                path = f"/proc/{pid}/fd/{stream}"
                self._files[stream] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            except OSError:  # another host, no /proc, or a socket
                self.inherited.add(stream)

    def feed(self, stream: int, data: bytes) -> bool:
        """Write the whole lines of `data`; False when the stream is an ordinary one."""
        if stream not in self._files:
            return False
        data = self._begun.pop(stream, b"") + data
        end = data.rfind(b"\n") + 1
        if end < len(data):
            self._begun[stream] = data[end:]
        self._write(stream, data[:end])
        return True

    def close(self) -> None:
        """Write last lines that have no newline."""
        for stream, data in self._begun.items():
            self._write(stream, data)
        self._begun.clear()

    def _write(self, stream: int, data: bytes) -> None:
        try:  # noqa: SIM105  contextlib is not light
            write_all(self._files[stream], data)
        except BrokenPipeError:
            pass
