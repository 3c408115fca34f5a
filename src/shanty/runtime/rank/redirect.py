"""Takes a rank's input from, and its output to, other places than the launcher's pipes.

*Input*: launchers forward theirs, but neither Open MPI 5 nor MPICH passes on the end of a pipe, so
rank 0 would wait indefinitely. On Linux it opens the file behind its launcher's (or node agent's)
descriptor; elsewhere, and for a socket, it has to rely on the launcher's forwarding.

*Output in place of the run's logs*: where the user's own line sends it, `mpirun … > file`,
`mpirun … | sort`. It should not go through the launcher, which may tear lines: on the launcher's
host a rank opens what stands behind the launcher's descriptor and appends whole lines to it.
Elsewhere it inherits the launcher's stream.

*Beside them*: files that the line asks for by name. They are `FOLDER/rank.K/stdout` and
`…/stderr`, as horovodrun's --output-filename has them, K with as many digits as the last rank's;
or one file with the lines of all ranks, each with its rank, as `[K] …`.
"""

from __future__ import annotations

import os
import sys

from shanty.runtime.frames import STDERR, STDOUT, write_all
from shanty.runtime.mpi.processes import OUTPUT_FILES, OUTPUT_LINES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

INPUT = "SHANTY_STDIN"
OUTPUT = "SHANTY_PASS"
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_LONGEST = 1 << 20  # bytes; a longer line is torn
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


def offer_input(fd: int) -> str:
    """Returns the value of INPUT with which rank 0 finds the file behind our descriptor `fd`."""
    return f"{os.uname().nodename}|/proc/{os.getpid()}/fd/{fd}"


def set_input_aside() -> int | None:
    """Moves our standard input to another descriptor, that children keep; None if it can't be."""
    if not os.path.exists("/proc/self/fd/0"):
        return None
    kept = os.dup(0)
    os.set_inheritable(kept, True)
    close_input()
    return kept


def close_input() -> None:
    """Makes our standard input an empty one."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0, inheritable=True)
    os.close(null)


def take_input(offered: str) -> None:
    """Makes the offered file our standard input, at the position up to which it was read."""
    host, _, path = offered.partition("|")
    if host != os.uname().nodename:
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # the writer of a FIFO may have gone
    except OSError:  # a socket cannot be opened this way
        return
    os.set_blocking(fd, True)
    try:
        with open(path.replace("/fd/", "/fdinfo/")) as file:
            os.lseek(fd, int(file.readline().split()[1]), os.SEEK_SET)
    except (OSError, ValueError, IndexError):
        pass  # a pipe has no position
    os.dup2(fd, 0, inheritable=True)
    os.close(fd)


def open_terminal() -> tuple[int, int]:
    """Returns the ends of a pseudo-terminal that passes bytes on as they are; a pipe without one.

    C, Perl and others write lines to a terminal at once, but keep what they write to a pipe until
    they end, and lose it when they crash. It is not the controlling terminal of any process.
    """
    import fcntl
    import struct
    import termios

    try:
        read, write = os.openpty()
    except OSError:  # no devpts, or none left
        return os.pipe()
    settings = termios.tcgetattr(write)
    settings[0] = settings[1] = 0  # no translation of CR and LF
    settings[3] = 0  # no echo, no signals
    termios.tcsetattr(write, termios.TCSANOW, settings)
    sizes = [os.environ.get(name, "") for name in ("LINES", "COLUMNS")]
    lines, columns = (int(text) if text.isdigit() else 0 for text in sizes)
    size = struct.pack("HHHH", min(lines or 24, 9999), min(columns or 80, 9999), 0, 0)
    fcntl.ioctl(write, termios.TIOCSWINSZ, size)
    return read, write


def offer_output(streams: str) -> str:
    """Returns the value of OUTPUT for a launcher with our pid that sends `streams` elsewhere."""
    return f"{os.uname().nodename}|{os.getpid()}|{streams}" if streams else ""


def redirected(ours: str) -> str:
    """Returns which of the streams 1 and 2 the user's line sends elsewhere, to a pipe or a file.

    `ours` names the files behind the streams that the node agent gave to the command.
    """
    return "".join(str(fd) for fd in (1, 2) if file_identity(fd) not in ours.split())


def file_identity(fd: int) -> str:
    """Returns the identity of the file behind a descriptor; "" when it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"


def _whole_lines(begun: dict[int, bytes], stream: int, data: bytes) -> bytes:
    """Returns the whole lines of a stream in `begun` and `data`, and keeps the rest in `begun`."""
    data = begun.pop(stream, b"") + data
    end = data.rfind(b"\n") + 1
    if not end and len(data) > _LONGEST:
        end = len(data)
    if end < len(data):
        begun[stream] = data[end:]
    return data[:end]


class Passed:
    """The streams of a rank that are sent elsewhere; `offered` is the value of OUTPUT."""

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
                self._files[stream] = os.open(f"/proc/{pid}/fd/{stream}", _APPEND)
            except OSError:  # another host, no /proc, or a socket
                self.inherited.add(stream)

    def feed(self, stream: int, data: bytes) -> bool:
        """Writes the whole lines of `data`; False when the stream is an ordinary one."""
        if stream in self._files:
            self._write(stream, _whole_lines(self._begun, stream, data))
        return stream in self._files

    def close(self) -> None:
        """Writes last lines that have no newline."""
        for stream, data in self._begun.items():
            self._write(stream, data)

    def _write(self, stream: int, data: bytes) -> None:
        try:  # noqa: SIM105  contextlib is not light
            write_all(self._files[stream], data)
        except BrokenPipeError:
            pass


def copies_of(environ: Mapping[str, str]) -> Copies | None:
    """Returns the files of the rank with this environment; None when none are asked for."""
    folder, file = environ.get(OUTPUT_FILES), environ.get(OUTPUT_LINES)
    if file:
        return Copies(file, f"[{environ['RANK']}] ".encode())
    if not folder:
        return None
    rank, last = int(environ["RANK"]), int(environ["WORLD_SIZE"]) - 1
    return Copies(f"{folder}/rank.{rank:0{len(str(last))}}")


class Copies:
    """The files of one rank, made with the first output; an error ends them.

    With a `label` all ranks append whole lines to one file, each with its label.
    """

    def __init__(self, path: str, label: bytes = b"") -> None:
        self._path = path
        self._label = label
        self._begun: dict[int, bytes] = {}
        self._files: dict[int, int] = {}
        self._failed = False

    def feed(self, stream: int, data: bytes) -> None:
        """Appends `data`, as it was read from `stream`, or the lines that are complete by now."""
        if self._label:
            whole = _whole_lines(self._begun, stream, data)
            lines = whole.removesuffix(b"\n").split(b"\n") if whole else []
            data = b"".join(self._label + line + b"\n" for line in lines)
        self._write(stream, data)

    def close(self) -> None:
        """Appends last lines that never got a newline."""
        for stream, line in self._begun.items():
            self._write(stream, self._label + line + b"\n")

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

    def _open(self, stream: int) -> int:
        if self._label:
            return os.open(self._path, _APPEND | os.O_CREAT, 0o644)
        os.makedirs(self._path, exist_ok=True)
        flags = _APPEND | os.O_CREAT | os.O_TRUNC
        return os.open(f"{self._path}/{_NAMES[stream]}", flags, 0o644)
