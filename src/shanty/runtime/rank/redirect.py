"""Takes a rank's output to other places than the run's logs.

*In their place*: where the user's own line sends it, `mpirun … > file`, `mpirun … | sort`. It
should not go through the launcher, which may tear lines: on the launcher's host a rank opens what
stands behind the launcher's descriptor and appends whole lines to it. Elsewhere it inherits the
launcher's stream.

*Beside them*: files that the line asks for by name. They are `FOLDER/rank.K/stdout` and
`…/stderr`, as horovodrun's --output-filename has them, K with as many digits as the last rank's;
or one file with the lines of all ranks, each with its rank, as `[K] …`.
"""

from __future__ import annotations

import os
import sys

from shanty.runtime.frames import STDERR, STDOUT, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

VARIABLE = "SHANTY_PASS"
FILES = "SHANTY_OUTPUT_FILES"  # the environment variable with the path of the ranks' folder
LINES = "SHANTY_OUTPUT_LINES"  # the one with the path of the file for all ranks
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_LONGEST = 1 << 20  # bytes; a longer line is torn
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


def offer(streams: str) -> str:
    """Returns the value of VARIABLE for a launcher with our pid that sends `streams` elsewhere."""
    return f"{os.uname().nodename}|{os.getpid()}|{streams}" if streams else ""


def redirected(ours: str) -> str:
    """Returns which of the streams 1 and 2 the user's line sends elsewhere than to the run's logs.

    `ours` names the files behind the streams that the node agent gave to the command. What the
    ranks write to another (a pipe to sort, a file) has to go through the launcher to get there.
    """
    return "".join(str(fd) for fd in (1, 2) if file_identity(fd) not in ours.split())


def file_identity(fd: int) -> str:
    """Returns what tells the file behind a descriptor from others; "" when it is closed."""
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
                self._files[stream] = os.open(path, _APPEND)
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


def copies_of(environ: Mapping[str, str]) -> Copies | None:
    """Returns the files of the rank whose environment this is; None when none are asked for."""
    folder, file = environ.get(FILES), environ.get(LINES)
    if file:
        return Lines(file, environ["RANK"])
    if not folder:
        return None
    rank, last = int(environ["RANK"]), int(environ["WORLD_SIZE"]) - 1
    return Copies(f"{folder}/rank.{rank:0{len(str(last))}}")


class Copies:
    """The files of one rank, made when there is something to write; an error ends them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[int, int] = {}
        self._failed = False

    def feed(self, stream: int, data: bytes) -> None:
        """Append `data`, as it was read from `stream`."""
        self._write(stream, data)

    def close(self) -> None:
        """Write what is kept back."""

    def _open(self, stream: int) -> int:
        os.makedirs(self._path, exist_ok=True)
        flags = _APPEND | os.O_CREAT | os.O_TRUNC
        return os.open(f"{self._path}/{_NAMES[stream]}", flags, 0o644)

    def _write(self, stream: int, data: bytes) -> None:
        if self._failed or not data:
            return
        try:
            if stream not in self._files:
                self._files[stream] = self._open(stream)
            write_all(self._files[stream], data)
        except OSError as error:
            self._failed = True
            print(f"shanty: cannot write {self._path}: {error.strerror}", file=sys.stderr)


class Lines(Copies):
    """One rank's part of a file that all ranks append to, whole lines."""

    def __init__(self, path: str, rank: str) -> None:
        super().__init__(path)
        self._label = f"[{rank}] ".encode()
        self._begun = {STDOUT: b"", STDERR: b""}

    def feed(self, stream: int, data: bytes) -> None:
        """Append the lines that are whole by now."""
        *whole, rest = (self._begun[stream] + data).split(b"\n")
        if len(rest) > _LONGEST:
            whole, rest = [*whole, rest], b""
        self._begun[stream] = rest
        self._append(whole)

    def close(self) -> None:
        """Append last lines that never got a newline."""
        self._append([begun for begun in self._begun.values() if begun])

    def _open(self, _: int) -> int:
        return os.open(self._path, _APPEND | os.O_CREAT, 0o644)

    def _append(self, lines: list[bytes]) -> None:
        self._write(STDOUT, b"".join(self._label + line + b"\n" for line in lines))
