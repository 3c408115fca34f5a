"""Forks ranks that have their frameworks imported, for `--warm`.

`python fork_server.py FD AGENT PATH PYTHON MODULES`: the descriptor of the listening socket, the
node agent's pid, the socket's path, and what Python is called in requests.

The node agent of a host starts it with the Python of the job, and `rank.exec` asks it for a rank by
a Unix socket (`rank/forked.py`). MPI is never loaded here: a rank is forked before MPI_Init.

    server ── a watcher for each rank: waits for the rank, reports its end to `rank.exec`
                └─ the rank: gets the environment, descriptors, folder and cores of `rank.exec`

A watcher outlives the server; the rank does not outlive its watcher, nor that `rank.exec`. The
server ends with its node agent. An agent that leaves where another attempt may follow says so; then
the server waits for the next agent, for a limited time.

Like all code inside a rank it imports nothing of shanty under its name.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import os
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

RANK, OWN, KEEP = b"R", b"O", b"K"  # what is asked for: a rank; to serve this agent, and the next
_MOST_FDS = 250  # in one message
_PATIENCE = 5.0  # seconds for what a process that has connected asks for
_ABANDONED = 20.0  # seconds to wait for the agent of another attempt
_TICK = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_shown: Any = None  # what /proc shows lies in the memory of the process
# Variables that are read at a start, or when a library is loaded: a rank cannot have others.
_OF_LOADING = ("PYTHON", "LD_PRELOAD", "LD_AUDIT", "GLIBC_", "MALLOC_")
_EARLY = (*_OF_LOADING, "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
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
        ours = _open_files()
        try:
            for name in modules:
                _import(name)
            _check_threads()
        except _UnfitError as error:
            self.unfit = str(error)
        sys.meta_path.remove(guard)
        # The modules' own, whose numbers a rank has to leave alone.
        self.files = {fd: path for fd, path in _open_files().items() if fd not in ours}
        if any(path.startswith(_DRIVERS) for path in self.files.values()):
            self.unfit = self.unfit or "the import of its modules takes a GPU into use"
        self.set_here = {
            name: value for name, value in os.environ.items() if self.before.get(name) != value
        }
        sys.stdout.flush()
        gc.collect()
        ending = self.core.load_part("rank/ending")
        writes = ending.has_files(gc.get_objects())
        gc.freeze()  # a collection in a rank would copy all pages
        self.frozen = 0 if writes else gc.get_freeze_count()

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
        if self.files.keys() & set(request["numbers"]):
            return "the modules have files open whose numbers it needs"
        return ""


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        top = name.partition(".")[0]
        if not isinstance(error, ModuleNotFoundError) or error.name != top:
            raise _UnfitError(f"the import of {name} fails: {error}") from error


def _check_threads() -> None:
    """Raise _UnfitError where a forked process would lack threads that this one has."""
    # OpenBLAS ends its threads at a fork, and starts them when they are needed.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    names = set()
    for thread in os.listdir("/proc/self/task")[1:]:
        with open(f"/proc/self/task/{thread}/comm") as file:
            names.add(file.read().strip())
    if names - {_HANDLES_FORKS}:
        named = ", ".join(sorted(names - {_HANDLES_FORKS}))
        raise _UnfitError(f"the import of its modules starts threads: {named}")


def _open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _load(name: str, path: str) -> ModuleType:
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    importlib.machinery.SourceFileLoader(name, path).exec_module(module)
    return module


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Rank:
    """A request for a rank; `fds` are the descriptors that came with it."""

    def __init__(self, link: socket.socket, values: dict[str, Any], fds: list[int]) -> None:
        self.link, self.values, self.fds = link, values, fds
        self.watcher = 0

    def answer(self, text: str) -> None:
        """Send a line to `rank.exec`, which may be gone."""
        with contextlib.suppress(OSError):
            self.link.sendall(text.encode(errors="replace") + b"\n")

    def become(self, warm: Warm) -> None:
        """Make this process what `rank.exec` would have started: Python, before its first line.

        Its limits, umask and signals are the node agent's already.
        """
        values, numbers = self.values, self.values["numbers"]
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.watcher:
            os._exit(1)
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, values["cores"])
        os.chdir(values["here"])  # noqa: TID251  it is a process of its own
        above = max(numbers) + 1
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in self.fds]
        self.link.close()
        _close(self.fds)
        for number, fd in zip(numbers, moved):
            os.dup2(fd, number, inheritable=True)
        _close(moved)
        os.environb.clear()
        os.environb.update(values["environ"])
        for name, text in warm.set_here.items():  # unless the rank has another value
            if os.environ.get(name) == warm.before.get(name):
                os.environ[name] = text
        line = getattr(sys, "orig_argv", None)  # of Python 3.10 and later
        if line is not None:
            line[:] = [values["python"], *values["words"]]
        _show(values["words"], values["python"], values["environ"])
        if "numpy.random" in sys.modules:  # `random` does so itself
            sys.modules["numpy.random"].seed()
        if "torch" in sys.modules:
            sys.modules["torch"].default_generator.seed()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _show(words: list[str], python: str, environ: dict[bytes, bytes]) -> None:
    """Have /proc show this command line and environment; no harm is done where that fails."""
    global _shown
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


class Server:
    """Serves the host's `rank.exec`s by `listener`; `owner` is the link of the node agent."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self.listener, self.path = listener, path
        self.owner: socket.socket | None = None  # the first has connected already
        self.patience = _ABANDONED  # seconds to wait for the next owner
        self.deadline = time.monotonic() + self.patience

    def serve(self, warm: Warm) -> Rank | None:
        """Fork a rank for each request; returns the request in the rank, None at the end."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
        while self.owner is not None or self._is_awaited():
            sources = [self.listener] if self.owner is None else [self.listener, self.owner]
            ready = select.select(sources, [], [], _TICK if self.owner is None else None)[0]
            if self.owner in ready:
                self._hear(self.owner)
            if self.listener in ready:
                rank = self._answer(warm)
                if rank is not None:
                    return rank
        return None

    def _is_awaited(self) -> bool:
        """True while the agent of another attempt may come; the run's end removes the socket."""
        return time.monotonic() < self.deadline and os.path.exists(self.path)

    def _hear(self, owner: socket.socket) -> None:
        word = b""
        with contextlib.suppress(OSError):
            word = owner.recv(1)
        if word == KEEP:
            self.patience = _ABANDONED
        elif not word:  # it has ended
            owner.close()
            self.owner, self.deadline = None, time.monotonic() + self.patience

    def _answer(self, warm: Warm) -> Rank | None:
        link, _ = self.listener.accept()
        link.settimeout(_PATIENCE)
        word, fds = b"", list[int]()
        with contextlib.suppress(OSError):
            word, fds, _, _ = socket.recv_fds(link, 1, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        if word == OWN:
            self.owner, self.patience = link, 0.0
            link.sendall(b"%d\n" % os.getpid())
            return None
        if word == RANK:
            with open(fds.pop(0)) as file:
                rank = Rank(link, ast.literal_eval(file.read()), fds)
            refused = warm.refusal(rank.values)
            if refused:
                rank.answer(f"refused {refused}")
            elif os.fork() == 0:
                return self._watch(rank)
        _close(fds)
        link.close()
        return None

    def _watch(self, rank: Rank) -> Rank:
        """In a watcher: fork the rank and wait for it. Returns in the rank only."""
        self.listener.close()
        if self.owner is not None:
            self.owner.close()
        rank.watcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            return rank
        _close(rank.fds)
        rank.answer(f"started {pid}")
        return _wait(pid, rank)


def _wait(pid: int, rank: Rank) -> NoReturn:
    """Wait for a rank, and end it once its `rank.exec` is gone."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    awaited = [wake, rank.link.fileno()]
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            rank.answer(f"ended {status}")
            os._exit(0)
        ready = select.select(awaited, [], [])[0]
        if wake in ready:
            os.read(wake, 512)
        elif ready:
            os.kill(pid, signal.SIGKILL)
            awaited = [wake]


def _main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
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
    rank = Server(listener, path).serve(warm)
    if rank is None:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os._exit(0)
    rank.become(warm)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, "")  # which becomes the script's folder
    warm.run.run_forked(rank.values["words"][1:], warm.core, warm.process, warm.frozen)


if __name__ == "__main__":
    _main()
