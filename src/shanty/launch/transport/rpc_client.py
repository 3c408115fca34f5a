"""The client of a host's RPC server (`runtime/rpc/server.py`), and the start of that server.

One command over the connection is enough: `sh` looks for a Python, Python runs the source of
`runtime/rpc/bootstrap.py` from its standard input, which receives shanty's code if the host does
not have it yet, and then serves.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import select
import subprocess
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from shanty.launch.package import FOLDER
from shanty.launch.transport.connection import Connection, Process
from shanty.launch.transport.openssh import OpenSSH
from shanty.runtime import errors
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.rpc import bootstrap
from shanty.runtime.site import Host

PATIENCE = 900.0  # seconds of silence after which a verb has failed; a dead link shows earlier
_PACKING = threading.Lock()
_CHUNK = 1 << 16
_COMPLAINTS = 4 << 10  # bytes of standard error that are kept
# The parts of shanty that are sent to a host: the agents, and what a script imports.
_PARTS = (
    *("__init__.py", "_version.py", "_starter.py", "_script.py", "_lazy.py", "_singleton.py"),
    *("_categories.py", "_departures.py", "_metrics.py", "py.typed"),
    *("_sinks", "runtime", "tasks", "collectives"),
    *("compat", "torch", "tensorflow", "tensorflow_ops", "keras", "xgboost", "lightgbm"),
)
_NO_PYTHON = "shanty-found-no-python"
_TRIES = b"shanty-tries "  # then the process group and the Python; without these, it is taken
_TRYING = 8.0  # seconds for a Python on PATH to print its version
_LOGIN = 5.0  # seconds in which a login usually runs a command
_NOTICE = 9.0  # seconds of silence that are reported to the user
_READING = 10.0  # seconds for a Python that runs to read its program
_BUSY = 60.0  # the same where no login file can take the program away: a busy node, a slow link
_PARTING = 2.0  # seconds for a silent login to react to the end of its input
_LAST_WORDS = 1.0  # seconds for what a command that ends has printed to arrive
_LOST_OUTPUT = ("Bad file descriptor", "write error")  # as shells and Python say it
_NOISE = 1 << 20  # bytes that a login shell may print before the RPC server answers
_PLACES = (
    "python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 "
    "/usr/local/bin/python3 /opt/homebrew/bin/python3 /usr/bin/python3 ~/.local/bin/python3 "
    "~/.pyenv/shims/python3 ~/miniforge3/bin/python3 ~/miniconda3/bin/python3 "
    "~/anaconda3/bin/python3 /opt/conda/bin/python3 ~/.local/share/uv/python/*/bin/python3"
)


# The program of `sh -c`, which becomes the first Python that is new enough. It contains no single
# quote, backslash, "!" or end of line, so that sh, bash, zsh, fish and csh all read it unchanged.
# The Python prints its real path, which a wrapper (pyenv's) hides. The first two arguments are of
# an earlier attempt: its process group, which is ended, and the Python that hung.
_SCRIPT = (
    '[ "$1" -gt 1 ] 2>/dev/null && { kill -9 "-$1" || kill -9 "$1"; } 2>/dev/null; '
    "SHANTY_WITHOUT=$2; export SHANTY_WITHOUT; shift 2; "
    f'for p in "$@" {_PLACES}; do '
    'x=$(command -v "$p" 2>/dev/null) || continue; '
    '[ "$x" = "$SHANTY_WITHOUT" ] && continue; echo; echo "shanty-tries $$ $x"; '
    'y=$("$x" -I -S -c "import sys;'
    'print(sys.executable if sys.version_info>=(3,9) else sys.version.split()[0])"'
    " 2>/dev/null </dev/null) || continue; "
    # a portable Python is the script that starts it
    'case "$x$y" in */store/portable/*/bin/python/*) y=$x;; esac; '
    'case "$y" in /*) echo; echo "shanty-tries "; exec "$y" -I -S -c '
    '"import os,sys;s=open(os.dup(0),sys.argv[1]);exec(eval(s.readline()))" rb shanty-rpc;; '
    '*) seen="$seen $x,$y";; esac; done; '
    f'echo; echo "{_NO_PYTHON} $seen"'
)


class NoAnswerError(Exception):
    """The RPC server did not start; `kind` says how far it got, `text` has messages.

    Kinds: "ended" (the command ended, `code`), "silent" (no answer in time), "no-input" (something
    else read the command's input), "no-output" (its output is lost), "python" (none is new
    enough; `text` lists "PATH,VERSION"), "python-silent" (`text`: "GROUP PATH" hangs), "storage"
    (shanty's code cannot be written there), "noise" (the login printed far too much). `said` is
    the last line that the login printed before it ended.
    """

    def __init__(self, kind: str, text: str = "", code: int | None = None, said: str = "") -> None:
        super().__init__(text or kind)
        self.kind = kind
        self.text = text
        self.code = code
        self.said = said


@dataclass(frozen=True)
class Bundle:
    """The files of one version of shanty's code, by their paths below the package's folder."""

    version: str  # a hash over all that is in it
    files: tuple[tuple[str, bytes, int], ...]  # path, content, mode

    @cached_property
    def tar(self) -> bytes:
        """The files as tar.gz."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
            for path, content, mode in self.files:
                info = tarfile.TarInfo(f"shanty/{path}")
                info.size, info.mode = len(content), mode
                tar.addfile(info, io.BytesIO(content))
        return buffer.getvalue()


@cache
def bundle() -> Bundle:
    """The bundle of the shanty that is running."""
    root = FOLDER
    files = []
    digest = hashlib.sha256()
    paths = [each for part in _PARTS for each in (root / part, *(root / part).rglob("*"))]
    for path in sorted(paths, key=lambda each: each.relative_to(root).as_posix()):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        content = path.read_bytes()
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{mode}\0{len(content)}\0".encode() + content)
        files.append((name, content, mode))
    return Bundle(digest.hexdigest()[:20], tuple(files))


class SilenceError(Exception):
    """Nothing could be read or written for too long."""


class EndedError(Exception):
    """The process has closed its output, or no longer reads."""


class Stream:
    """Talks with a process; writing never blocks because of its output."""

    def __init__(self, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr  # a connection sees to it
        self.process = process
        self.sent = 0  # bytes written
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        self._waiting = bytearray()  # read, and not returned yet
        self._ended = False
        self._complaints = bytearray()
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def write(self, data: bytes | memoryview, patience: float) -> None:
        """Write all of it; SilenceError when not a byte moved for `patience` seconds."""
        if self._in.closed:  # after an earlier failure
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
        """The next line, without its end; EndedError at the end of the output."""
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

    def rest(self) -> bytes:
        """What a command that has ended, or prints too much, has written since the last line."""
        until = time.monotonic() + _LAST_WORDS
        with contextlib.suppress(SilenceError):
            while not self._ended and len(self._waiting) < _CHUNK:
                self._wait(until)
                self._take()
        return bytes(self._waiting)

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
        """The end of the process's standard error."""
        if self.process.poll() is not None:
            # A shared connection may keep the pipe open, so do not wait for its end.
            self._listener.join(0.3)
        return bytes(self._complaints).decode(errors="replace").strip()

    def end_input(self) -> None:
        """Close the standard input of the process."""
        with contextlib.suppress(OSError):
            self._in.close()

    def has_ended(self) -> bool:
        """True if the process has ended, or closed its output."""
        return self._ended or self.process.poll() is not None

    def close(self, grace: float = 2.0) -> None:
        """Close the pipes and wait for the process to end; kill it after `grace` seconds."""
        self.end_input()
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
        """Wait for output, or also for room for input; returns which of the two is ready."""
        poll = select.poll()
        if not self._ended:
            poll.register(self._out.fileno(), select.POLLIN)
        if writing:
            poll.register(self._in.fileno(), select.POLLOUT)
        left = until - time.monotonic()
        ready = dict(poll.poll(max(0.0, left) * 1000))
        if not ready and left <= 0:
            raise SilenceError
        return self._out.fileno() in ready, writing and self._in.fileno() in ready

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
                del self._complaints[:-_COMPLAINTS]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a verb."""

    values: dict[str, Any]
    data: bytes = b""


@dataclass(slots=True)
class RpcClient:
    """A host with a running RPC server; requests are sent one at a time."""

    host: Host
    python: str  # the interpreter of the server, and its version
    version: str
    home: str  # shanty's folder there
    root: str  # the folder there that contains the package `shanty`
    connection: Connection
    _stream: Stream
    noise: str = ""  # the output of the login shell
    notes: list[tuple[str, str]] = field(default_factory=list)  # problems that were worked around
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def connect(
        cls,
        connection: Connection,
        *,
        pythons: Iterable[str] = (),
        patience: float = 30.0,
        report: Callable[[str], None] = lambda _text: None,
        started: Callable[[Process], None] = lambda _process: None,
    ) -> RpcClient:
        """Start an RPC server; NoAnswerError when that fails.

        `pythons` are interpreters to try first, `patience` limits each wait (in seconds), `report`
        gets a text before something slow, and `started` gets the process. A Python that hangs is
        skipped.
        """
        start = partial(cls._start, connection, tuple(pythons), patience, report, started)
        try:
            return start()
        except NoAnswerError as error:
            if error.kind != "python-silent":
                raise
            hangs = error
        try:
            client = start(*hangs.text.split(" ", 1))
        except NoAnswerError as error:
            raise hangs if error.kind.startswith("python") else error from None
        path = hangs.text.partition(" ")[2]
        what = f"its {path} does not answer within {_TRYING:g} s; {client.python} was taken"
        client.notes.append((what, "see why it hangs, or remove it from the PATH of logins"))
        return client

    @classmethod
    def _start(
        cls,
        connection: Connection,
        pythons: Sequence[str],
        patience: float,
        report: Callable[[str], None],
        started: Callable[[Process], None],
        ended: str = "",
        without: str = "",
    ) -> RpcClient:
        begun = time.monotonic()
        process = connection.start(["sh", "-c", _SCRIPT, "sh", ended, without, *pythons])
        started(process)
        stream = Stream(process)
        by_login = isinstance(connection, OpenSSH)
        listener = _Listener(stream, patience, report, surely=not by_login)
        try:
            stream.write(_first_line(bundle().version), patience)
            found = listener.message()
            listener.surely = True
            if not found["have"]:
                with _PACKING:  # once for all hosts
                    tar = bundle().tar
                report(f"sends shanty's own code ({len(tar) // 1024} KiB)")
                stream.write(f"{len(tar)}\n".encode() + tar, patience)
                answer = listener.message()
                if "error" in answer:
                    raise NoAnswerError("storage", answer["error"])
            own = {name: found[name] for name in ("python", "version", "home", "root")}
            client = cls(connection.host, **own, connection=connection, _stream=stream)
            client.noise = b"\n".join(listener.noise).decode(errors="replace").strip()
            if listener.began - begun > _LOGIN and by_login:
                what = f"a login takes more than {_LOGIN:g} s before it runs a command"
                client.notes.append((what, "see what ~/.bashrc and similar files wait for"))
            if found["damaged"]:
                what = "shanty's own code had been damaged there; it was sent again"
                client.notes.append((what, "check the host's disk"))
            return client
        except SilenceError:
            kind = "silent" if listener.surely else listener.silence()
            stream.close(0.0)
            if listener.trying:
                raise NoAnswerError("python-silent", listener.trying) from None
            raise NoAnswerError(kind, stream.complaints()) from None
        except EndedError:
            # the command may still run with its output closed; it is useless then
            said = b"\n".join([*listener.noise, stream.rest()])
            code, text = _code(stream), stream.complaints()
            lost = not listener.began and any(words in text for words in _LOST_OUTPUT)
            if len(said) >= _NOISE:
                raise NoAnswerError("noise") from None
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            kind = "no-output" if lost else "ended"
            raise NoAnswerError(kind, text, code, "" if listener.began else last) from None
        except BaseException:
            stream.close(0.0)
            raise

    @property
    def bytes_sent(self) -> int:
        """The bytes that were sent to the host so far."""
        return self._stream.sent

    def ask(
        self,
        verb: str,
        *,
        data: bytes | Iterable[bytes] = b"",
        size: int | None = None,
        progress: Callable[[dict[str, Any]], None] = lambda _progress: None,
        patience: float = PATIENCE,
        **args: Any,
    ) -> Answer:
        """Send a request for `verb` and wait for the answer.

        `data` is sent with it; `size` is its length if it comes in pieces. An error on the host is
        raised here with its class, and the host's name. PrepareError when the host is lost, or
        silent for `patience` seconds.
        """
        count = len(data) if isinstance(data, bytes) else size or 0
        request = {"do": verb, **args, **({"bytes": count} if count else {})}
        with self._turn:
            try:
                self._send(request, data, count, patience)
                return self._receive(progress, patience)
            except SilenceError:
                self.close(0.0)
                raise PrepareError(
                    f"{self.host.name} has not answered for {patience:.0f} s",
                    f"the request was {verb!r}",
                    "check the host's load and its disks",
                ) from None
            except EndedError:
                code = _code(self._stream)
                raise PrepareError(
                    f"the connection to {self.host.name} is lost",
                    self._stream.complaints() or f"the RPC server there ended with {code}",
                    "check that the host is up; then try again",
                ) from None

    def close(self, grace: float = 2.0) -> None:
        """End the RPC server; a shared connection stays open for a while."""
        self._stream.close(grace)

    def _send(
        self, request: dict[str, Any], data: bytes | Iterable[bytes], count: int, patience: float
    ) -> None:
        self._stream.write(json.dumps(request).encode() + b"\n", patience)
        sent = 0
        for piece in (data,) if isinstance(data, bytes) else data:
            sent += len(piece)
            if sent > count:
                break
            self._stream.write(piece, patience)
        if sent != count:
            self.close(0.0)  # it waits for the rest, so no further request is possible
            raise PrepareError(
                f"the data for {self.host.name} are not as long as announced",
                f"{count} bytes were announced, {sent} or more were read",
                "a file may have changed meanwhile; try again",
            )

    def _receive(self, progress: Callable[[dict[str, Any]], None], patience: float) -> Answer:
        while True:
            line = self._stream.line(patience)
            try:
                message = json.loads(line)
                known = message.keys() & {"progress", "error", "ok"}
            except (ValueError, AttributeError):
                known = set()
            if not known:
                self.close(0.0)
                raise PrepareError(
                    f"{self.host.name} sent an invalid answer",
                    repr(line[:80]),
                    "another program there writes to the connection; check its login shell",
                )
            if "progress" in message:
                progress(message["progress"])
            elif "error" in message:
                raise _raised(message["error"], self.host)
            else:
                data = self._stream.read(int(message.get("bytes", 0)), patience)
                return Answer(message["ok"], data)


@cache
def _first_line(version: str) -> bytes:
    """The program for the host's Python, as an expression on one line."""
    source = Path(bootstrap.__file__).read_text(encoding="utf-8") + f"\nmeet(s, {version!r})\n"
    packed = base64.b64encode(zlib.compress(source.encode(), 9)).decode()
    return f"__import__('zlib').decompress(__import__('base64').b64decode('{packed}'))\n".encode()


class _Listener:
    """Receives the messages of `bootstrap`, and before it of the script that looks for a Python.

    `began` is when that script started, `trying` its process group and the Python that it waits
    for, and `noise` has other lines. `surely`: what is sent reaches the Python, however late.
    """

    def __init__(
        self, stream: Stream, patience: float, report: Callable[[str], None], *, surely: bool
    ) -> None:
        self._stream, self._patience, self._report = stream, patience, report
        self.surely = surely
        self._received = 0
        self.began = 0.0
        self.trying = ""
        self.noise: list[bytes] = []

    def message(self) -> dict[str, Any]:
        """The next message of `bootstrap`."""
        while self._received < _NOISE:
            line = self._line()
            self._received += len(line) + 1
            if line.startswith(bootstrap.MARK):
                message: dict[str, Any] = json.loads(line[len(bootstrap.MARK) :])
                return message
            if line.startswith(_NO_PYTHON.encode()):
                self._stream.close()
                text = line[len(_NO_PYTHON) :].decode(errors="replace")
                raise NoAnswerError("python", text.strip())
            if line.startswith(_TRIES):
                self.began = self.began or time.monotonic()
                self.trying = line[len(_TRIES) :].decode(errors="replace").strip()
            else:
                self.noise.append(line)
        raise EndedError

    def _line(self) -> bytes:
        if self.began:
            if self.surely and not self.trying:
                return self._stream.line(max(_BUSY, self._patience), _NOISE)
            limit = _TRYING if self.trying else _READING
            return self._stream.line(min(limit, self._patience), _NOISE)
        rest = self._patience - _NOTICE
        if rest > 0:
            with contextlib.suppress(SilenceError):
                return self._stream.line(_NOTICE, _NOISE)
            self._report(
                f"has run no command for {_NOTICE:g} s, as if its sshd or a login file (~/.bashrc) "
                f"hung; waits another {rest:g} s"
            )
        return self._stream.line(max(rest, min(_NOTICE, self._patience)), _NOISE)

    def silence(self) -> str:
        """The kind of a silence: what the login does when its input ends shows what it waits for.

        A login file that reads the input ends then, and so does a server whose answers are lost.
        """
        if not self.began:
            self._patience = _PARTING
            self._stream.end_input()
            with contextlib.suppress(SilenceError, EndedError, NoAnswerError):
                self.message()
            if not self.began and self._stream.has_ended():
                return "no-output"
        return "no-input" if self.began else "silent"


def _code(stream: Stream) -> int | None:
    stream.close()
    return stream.process.returncode


def _raised(error: dict[str, str], host: Host) -> ShantyError:
    kind = getattr(errors, error["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, ShantyError)):
        kind = PrepareError
    return kind(f"on {host.name}: {error['what']}", error["why"], error["fix"])
