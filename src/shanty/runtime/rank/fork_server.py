"""Forks ranks that have their frameworks imported, for `--warm`.

`python fork_server.py FDS AGENT PATH PYTHON MODULES`: the descriptors of the listening socket and
of the node agent's link, the agent's pid, the socket's path, and what Python is called in requests.

The node agent of a host starts it with the Python of the job, and `rank.exec` asks it for a rank by
a Unix socket (`rank/forked.py`). MPI is never loaded here: a rank is forked before MPI_Init.

    server ── a watcher for each rank: waits for the rank, reports its end to `rank.exec`
                └─ the rank: gets the environment, descriptors and limits of `rank.exec`

A watcher outlives the server; the rank does not outlive its watcher, nor that `rank.exec`. The
server ends with its node agent. An agent that leaves where another attempt may follow says so; then
the server waits for the next agent, for a limited time.

Like all code inside a rank it imports nothing of shanty under its name.
"""

from __future__ import annotations

import array
import ast
import contextlib
import fcntl
import gc
import importlib
import importlib.machinery
import io
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

HEADER = struct.Struct("!cI")  # of a message to the server: its kind, and the bytes that follow
RANK, OWN, KEEP = b"R", b"O", b"K"
_MOST_FDS = 250  # in one message
_PATIENCE = 5.0  # seconds for the rest of a message
_ABANDONED = 20.0  # seconds to wait for the agent of another attempt
_TICK_MS = 100
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_shown: Any = None  # what /proc shows lies in the memory of the process
# Variables that are read at a start, or when a library is loaded: a rank cannot have others.
_EARLY = (
    *("PYTHON", "LD_PRELOAD", "LD_AUDIT", "GLIBC_", "MALLOC_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
)
_HANDLES_FORKS = "jemalloc_bg_thd"  # a thread of jemalloc, as in pandas' pyarrow
_DRIVERS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")  # a GPU in use cannot be passed on


class _UnfitError(BaseException):
    """Ranks cannot be forked from this process. No module that is imported may catch it."""


class _NoMPI:
    """Refuses mpi4py.MPI, whose import starts MPI."""

    def find_spec(self, name: str, *_: object) -> None:
        """Find nothing; raise for mpi4py.MPI."""
        if name == "mpi4py.MPI":
            raise _UnfitError("the import of its modules starts MPI")


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Warm:
    """This process with the modules imported; `unfit` says why no rank can be forked from it."""

    def __init__(self, python: str, modules: list[str]) -> None:
        self.python, self.modules, self.unfit = python, modules, ""
        here = os.path.dirname(os.path.abspath(__file__))
        self.run: Any = _load("_shanty_run", os.path.join(here, "run.py"))
        self.core: Any = self.run.load_instrumentation()
        self.core.find_packages(os.environ)
        # The hooks of modules keep it; it becomes the rank's after the fork.
        self.process = self.core.RankProcess.__new__(self.core.RankProcess)
        follower = self.core.ImportFollower(self.process, self.process.saw_mpi, self.process.claim)
        guard = _NoMPI()
        sys.meta_path[:0] = [guard, follower]
        self.before = dict(os.environ)
        try:
            for name in modules:
                self._import(name)
            self._check()
        except _UnfitError as error:
            self.unfit = str(error)
        sys.meta_path.remove(guard)
        self.set_here = {
            name: value for name, value in os.environ.items() if self.before.get(name) != value
        }
        gc.collect()
        gc.freeze()  # a collection in a rank would copy all pages

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            top = name.partition(".")[0]
            if not isinstance(error, ModuleNotFoundError) or error.name != top:
                raise _UnfitError(f"the import of {name} fails: {error}") from error

    def _check(self) -> None:
        """Raise _UnfitError where a forked process would lack something that this one has."""
        # OpenBLAS ends its threads at a fork, and starts them when they are needed.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        names = [_name(thread) for thread in os.listdir("/proc/self/task")]
        threads = sorted(name for name in names[1:] if name != _HANDLES_FORKS)
        if threads:
            raise _UnfitError(f"the import of its modules starts threads: {', '.join(threads)}")
        for name in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # the folder's own
                continue
            if path.startswith(_DRIVERS):
                raise _UnfitError("the import of its modules takes a GPU into use")

    def refusal(self, request: dict[str, Any]) -> str:
        """Return why a rank has to start without this server; "" where it need not."""
        if self.unfit:
            return self.unfit
        if request["python"] != self.python:
            return f"it is started by {request['python']}, the fork server by {self.python}"
        given = {os.fsdecode(key): os.fsdecode(text) for key, text in request["environ"].items()}
        for name in sorted({*given, *self.before}):
            if name.startswith(_EARLY) and given.get(name) != self.before.get(name):
                ours = self.before.get(name, "unset")
                return f"{name} is {given.get(name, 'unset')}, in the fork server {ours}"
        for name in self.modules:
            own = os.path.join(request["folder"], name.partition(".")[0])
            for path in (f"{own}.py", os.path.join(own, "__init__.py")):
                if os.path.exists(path):
                    return f"the script has a {path} of its own"
        return ""


def _name(thread: str) -> str:
    with open(f"/proc/self/task/{thread}/comm") as file:
        return file.read().strip()


def _load(name: str, path: str) -> ModuleType:
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    importlib.machinery.SourceFileLoader(name, path).exec_module(module)
    return module


class Rank:
    """A request for a rank; `fds` are the descriptors that came with it."""

    def __init__(self, link: socket.socket, values: dict[str, Any], fds: list[int]) -> None:
        self.link, self.values, self.fds = link, values, fds
        self.watcher = 0

    def place_free(self) -> bool:
        """Move the descriptors out of the way; False where a module here uses their numbers."""
        above = max(self.values["numbers"]) + 1
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in self.fds]
        self.drop()
        self.fds = moved
        link = socket.socket(fileno=fcntl.fcntl(self.link, fcntl.F_DUPFD_CLOEXEC, above))
        self.link.close()
        self.link = link
        return not any(number > 2 and _is_open(number) for number in self.values["numbers"])

    def drop(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def answer(self, text: str) -> None:
        """Send a line to `rank.exec`, which may be gone."""
        with contextlib.suppress(OSError):
            self.link.sendall(text.encode(errors="replace") + b"\n")

    def become(self, warm: Warm) -> None:
        """Make this process what `rank.exec` would have started: Python, before its first line."""
        values = self.values
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.watcher:
            os._exit(1)
        _set_group(0, values["group"])
        for number in values["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, values["blocked"])
        os.umask(values["umask"])
        for number, limits in values["limits"].items():
            with contextlib.suppress(OSError, ValueError):  # more than this process may have
                if resource.getrlimit(number) != limits:
                    resource.setrlimit(number, limits)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, values["cores"])
        *fds, folder = self.fds
        os.fchdir(folder)
        for number, fd in zip(values["numbers"], fds):
            os.dup2(fd, number, inheritable=True)
        self.drop()
        os.environb.clear()
        os.environb.update(values["environ"])
        for name, text in warm.set_here.items():  # unless the rank has another value
            if os.environ.get(name) == warm.before.get(name):
                os.environ[name] = text
        for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
            stream = _stream(getattr(sys, name), fd, mode)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        line = getattr(sys, "orig_argv", None)  # of Python 3.10 and later
        if line is not None:
            line[:] = [values["python"], *values["words"]]
        _show(values["words"], values["python"], values["environ"])
        if "numpy.random" in sys.modules:  # `random` does so itself
            sys.modules["numpy.random"].seed()
        if "torch" in sys.modules:
            sys.modules["torch"].default_generator.seed()


def _show(words: list[str], python: str, environ: dict[bytes, bytes]) -> None:
    """Have /proc show this command line and environment; no harm is done where that fails."""
    global _shown
    import ctypes

    argv = b"".join(os.fsencode(word) + b"\0" for word in (python, *words))
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environ.items())
    _shown = ctypes.create_string_buffer(argv + variables)
    at = ctypes.addressof(_shown)
    ends = [at, at + len(argv), at + len(argv), at + len(argv) + len(variables)]
    with open("/proc/self/stat") as file:
        fields = [*map(int, file.read().rpartition(") ")[2].split()[1:])]
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    # struct prctl_mm_map; the list begins with the fourth field of proc(5).
    code, data, stack = fields[22:24], fields[41:43], fields[24]
    places = [*code, *data, fields[43], libc.sbrk(0), stack, *ends, 0]
    layout = struct.pack("12QII", *places, 0, 0xFFFFFFFF)
    libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout)), 0)


def _stream(old: Any, fd: int, mode: str) -> Any:
    """Return what Python has for a standard stream at its start."""
    raw: Any = io.FileIO(fd, mode, closefd=False)
    raw.name = f"<{('stdin', 'stdout', 'stderr')[fd]}>"
    buffer: Any = io.BufferedReader(raw) if mode == "r" else raw
    if isinstance(old.buffer, io.BufferedWriter):  # it is not unbuffered
        buffer = io.BufferedWriter(raw)
    stream: Any = io.TextIOWrapper(
        buffer, old.encoding, old.errors, newline="\n", line_buffering=fd == 2,
        write_through=mode == "w" and old.write_through,
    )  # fmt: skip
    stream.mode = mode
    return stream


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _set_group(pid: int, group: int) -> bool:
    """Put a process into the group of its `rank.exec`; False where that is in another session."""
    try:
        os.setpgid(pid, group)
    except OSError:
        return False
    return True


def _receive(link: socket.socket) -> tuple[bytes, bytes, list[int]]:
    """Return the kind of a message, its content and its descriptors; OSError for a broken one."""
    link.settimeout(_PATIENCE)
    space = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)
    data, extra, _, _ = link.recvmsg(HEADER.size, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    kind, size = HEADER.unpack(data) if len(data) == HEADER.size else (b"", 0)
    content = b""
    while len(content) < size:
        piece = link.recv(size - len(content))
        if not piece:
            raise ConnectionError
        content += piece
    link.settimeout(None)
    return kind, content, list(fds)


class Server:
    """Serves the host's `rank.exec`s by `listener`; `owner` is the link of the node agent."""

    def __init__(
        self, listener: socket.socket, owner: socket.socket, agent: int, path: str
    ) -> None:
        self.listener, self.agent, self.path = listener, agent, path
        self.owner: socket.socket | None = owner
        self.kept = False  # the agent has announced the one of another attempt
        self.deadline = 0.0  # until which that one is waited for
        self.parent = 0
        self.wake, self.woken = os.pipe()
        self.watch_children()

    def watch_children(self) -> None:
        """Have the end of a child seen by poll(2)."""
        os.set_blocking(self.wake, False)
        os.set_blocking(self.woken, False)
        signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, warm: Warm) -> Rank | None:
        """Fork a rank for each request; returns the request in the rank, None at the end."""
        while self.owner is not None or self._is_awaited():
            poll = select.poll()
            for source in (self.wake, self.listener, self.owner):
                if source is not None:
                    poll.register(source, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(_TICK_MS if self.owner is None else None)}
            if self.wake in ready:
                os.read(self.wake, 512)
                _reap()
            if self.owner is not None and self.owner.fileno() in ready:
                self._hear_owner(self.owner)
            if self.listener.fileno() in ready:
                rank = self._answer(warm)
                if rank is not None:
                    return rank
        return None

    def _is_awaited(self) -> bool:
        """True while the agent of another attempt may come."""
        parent = os.getppid()
        if parent != self.agent:  # on the lead host the controller is the next parent
            self.parent = self.parent or parent
        ours = self.parent in (0, parent) and os.path.exists(self.path)
        return self.kept and ours and time.monotonic() < self.deadline

    def _hear_owner(self, owner: socket.socket) -> None:
        try:
            kind = _receive(owner)[0]
        except OSError:
            kind = b""
        if kind == KEEP:
            self.kept = True
            owner.sendall(b"kept\n")
        else:  # it has ended
            owner.close()
            self.owner, self.deadline = None, time.monotonic() + _ABANDONED

    def _answer(self, warm: Warm) -> Rank | None:
        link, _ = self.listener.accept()
        try:
            kind, content, fds = _receive(link)
        except OSError:
            link.close()
            return None
        if kind == OWN:
            self.owner, self.kept, self.parent = link, False, 0
            link.sendall(b"%d\n" % os.getpid())
            return None
        rank = None
        if kind == RANK:
            rank = Rank(link, ast.literal_eval(content.decode()), fds)
            refused = warm.refusal(rank.values)
            if refused:
                rank.answer(f"refused {refused}")
            elif os.fork() == 0:
                return self._watch(rank)
            rank.drop()
        link.close()
        return None

    def _watch(self, rank: Rank) -> Rank:
        """In a watcher: fork the rank and wait for it. Returns in the rank only."""
        self._close()
        if not rank.place_free():
            rank.answer("refused its descriptors have numbers that are in use in the fork server")
            os._exit(0)
        rank.watcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            rank.link.close()
            return rank
        rank.drop()
        grouped = _set_group(pid, rank.values["group"])
        self.wake, self.woken = os.pipe()
        self.watch_children()
        rank.answer(f"started {pid} {int(grouped)}")
        return _wait(pid, rank, self.wake)

    def _close(self) -> None:
        """Close what is the server's own."""
        signal.set_wakeup_fd(-1)
        for fd in (self.wake, self.woken):
            os.close(fd)
        self.listener.close()
        if self.owner is not None:
            self.owner.close()


def _wait(pid: int, rank: Rank, wake: int) -> NoReturn:
    """Wait for a rank, and end it once its `rank.exec` is gone."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(rank.link, select.POLLIN)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            rank.answer(f"ended {status}")
            os._exit(0)
        for fd, _ in poll.poll():
            if fd == wake:
                os.read(wake, 512)
            else:
                os.kill(pid, signal.SIGKILL)
                poll.unregister(fd)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _main() -> None:
    listener, owner = (socket.socket(fileno=int(fd)) for fd in sys.argv[1].split(","))
    agent, path, python, modules = int(sys.argv[2]), *sys.argv[3:5], sys.argv[5].split(",")
    sys.argv = [""]
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        del sys.path[0]  # the folder of this file
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        return
    warm = Warm(python, modules)
    _prctl(_PR_SET_PDEATHSIG, 0)  # from here on the end of its link counts
    server = Server(listener, owner, agent, path)
    rank = server.serve(warm)
    if rank is None:
        with contextlib.suppress(OSError):
            os.unlink(server.path)
        os._exit(0)
    rank.become(warm)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, "")  # which becomes the script's folder
    warm.run.run_forked(rank.values["words"][1:], warm.core, warm.process)


if __name__ == "__main__":
    _main()
