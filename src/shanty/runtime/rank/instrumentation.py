"""Instruments a Python rank: reports when it joins MPI or fails, and dumps stacks.

It is loaded by path, under a private name, into whatever Python the user runs: it imports
nothing of shanty, little of the standard library, and adds no name that a script could meet.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.machinery
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Mapping, Sequence

# Where frameworks look for the other ranks, if the script does not change it.
_PLACES = ["MASTER_ADDR", "MASTER_PORT", "SHANTY_ADDRESSES", "TF_CONFIG", "JAX_COORDINATOR_ADDRESS"]
_SPARE = 3  # descriptors
TENSORFLOW_1 = "SHANTY_TF1"  # "1": what the script imports as tensorflow is TensorFlow 1's


def load_part(name: str) -> ModuleType:
    """Returns the module `name` ("rank/reports") of the folder above, under a private name."""
    private = "_shanty_" + name.replace("/", "_")
    if private not in sys.modules:
        above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = os.path.join(above, name + ".py")
        loader = importlib.machinery.SourceFileLoader(private, path)
        module = type(sys)(private)
        module.__file__ = path
        sys.modules[private] = module
        loader.exec_module(module)
    return sys.modules[private]


reports = load_part("rank/reports")
processes = load_part("mpi/processes")


class RankProcess:
    """The rank that this Python process is."""

    def __init__(self, run_dir: str, rank: int, world: str) -> None:
        self.run_dir = run_dir
        self.rank = rank
        self.world = world
        self.pid = os.getpid()
        # By the launcher's variables.
        self.size = processes.number(os.environ, processes.SIZE) or 1
        self.began_with = {name: os.environ[name] for name in _PLACES if name in os.environ}
        self.mpi: Any = None
        self.claimed = False
        self.has_joined = False
        self.mpi_user = ""  # the package that imported mpi4py.MPI
        self.failing = self.has_forked = False
        self.meets = False  # it is in a framework's rendezvous
        self.frozen = 0  # objects that were frozen before it was forked, but for open files
        # For what a failing rank has to open, where the script has used up all descriptors.
        self._spare = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE)]

    def close_spare(self) -> None:
        """Makes room for files that have to be opened now; scripts may have closed the spare."""
        null = os.stat(os.devnull).st_rdev
        for fd in self._spare:
            try:
                if os.fstat(fd).st_rdev == null:
                    os.close(fd)
            except OSError:
                pass
        self._spare.clear()

    def claim(self) -> bool:
        """Returns True for the first process of the rank that calls it: others are its helpers."""
        if self.claimed:
            return os.getpid() == self.pid
        try:
            os.close(os.open(self._claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError:
            return False
        self.claimed = True
        return True

    @property
    def _claim(self) -> str:
        return f"{self.run_dir}/claims/{self.world}-{self.rank}"

    def is_childs(self) -> bool:
        """Returns True in a process that descends from the rank's, which is in MPI already."""
        try:
            with open(self._claim) as file:
                rank = int(file.read() or 0)
            pid = os.getpid()
            while rank and pid > 1 and pid != rank:
                with open(f"/proc/{pid}/stat") as file:
                    pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # /proc is missing, or the rank is elsewhere
            return False
        return pid == rank != os.getpid()

    def tell(self, event: str, **more: Any) -> None:
        """Sends a report to the node agent, if it is there."""
        try:
            channel = reports.open_reports(os.environ[reports.FIFO])
        except (OSError, KeyError):
            return
        report = {"event": event, "rank": self.rank, "world": self.world, "pid": os.getpid()}
        reports.send(channel, {**report, **more})
        os.close(channel)

    def allow_stacks(self) -> None:
        """Lets the node agent read the stacks at any time, even within an MPI call.

        A thread writes the stacks of all threads while it holds the GIL (`stack_server`). Where it
        does not get the GIL, a signal writes the stack of the thread that receives it, and only
        that: the frames of running threads cannot be read. So does the signal of a crash;
        `post_mortem` reads that file.
        """
        import faulthandler

        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        if not faulthandler.is_enabled():
            path = f"{self.run_dir}/stacks/rank-{self.rank}.crash"
            self._crash: int | None = os.open(path, flags | os.O_TRUNC, 0o644)
            faulthandler.enable(self._crash, all_threads=False)
            faulthandler.enable = self._leave_crashes(faulthandler.enable)
        number = os.environ.get("SHANTY_STACKS_SIGNAL")
        path = f"{self.run_dir}/stacks/rank-{self.rank}"
        if number and hasattr(faulthandler, "register"):
            file = os.open(f"{path}.signal", flags | os.O_APPEND, 0o644)
            faulthandler.register(int(number), file=file, all_threads=False, chain=False)
        if number:
            load_part("rank/stack_server").StackServer(path).start()
        if number and sys.platform == "linux":
            probe = load_part("rank/progress_probe").ProgressProbe
            self._probe = probe(f"{path}.pulse", int(number) + 1)

    def _leave_crashes(self, enable: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `enable` such that the script handles crashes once it has called it."""

        def enabled(*args: Any, **kwargs: Any) -> Any:
            self._crash = None
            vars(sys.modules["faulthandler"])["enable"] = enable
            return enable(*args, **kwargs)

        return enabled

    def loading(self, path: str) -> None:
        """Reports that the libmpi is loaded; MPI_Init, which comes next, may never return."""
        self.tell("loading", path=path, host=os.uname().nodename)

    @staticmethod
    def library_path() -> str:
        """Returns the libmpi that this process has loaded; "" where none is found, or no /proc."""
        try:
            with open("/proc/self/maps", errors="replace") as file:
                for line in file:
                    if "/libmpi.so" in line or "/libmpich.so" in line:
                        return line[line.index("/") :].strip()
        except OSError:
            pass
        return ""

    def saw_mpi(self, mpi: Any) -> None:
        """Notes when `mpi4py.MPI`, which has just been imported, is initialised."""
        self.mpi = mpi
        if mpi.Is_initialized():
            self._joined()
            return

        def then_joined(init: Callable[..., Any]) -> Callable[..., Any]:
            def initialise(*args: Any, **kwargs: Any) -> Any:
                result = init(*args, **kwargs)
                self._joined()
                return result

            initialise.__doc__ = init.__doc__
            return initialise

        mpi.Init, mpi.Init_thread = then_joined(mpi.Init), then_joined(mpi.Init_thread)

    def _joined(self) -> None:
        mpi, world = self.mpi, self.mpi.COMM_WORLD
        known = self.has_joined or os.getpid() != self.pid
        if not known and mpi.Comm.Get_parent() == mpi.COMM_NULL:
            self.joined(mpi, world.Get_rank(), world.Get_size())
        elif known or "SHANTY_JOINS" not in os.environ:
            return
        atexit.register(self._finalize)

    def joined(self, mpi: Any, rank: int, size: int) -> None:
        """Reports that this process is `rank` of `size` by `mpi`: mpi4py.MPI or the like."""
        self.mpi, self.has_joined = mpi, True
        crash = getattr(self, "_crash", None)
        if crash is not None:  # Open MPI has put its own handlers in the place of these
            faulthandler = sys.modules["faulthandler"]
            faulthandler.disable()
            faulthandler.enable(crash, all_threads=False)
        if self.claimed:
            try:
                with open(self._claim, "w") as file:
                    file.write(str(os.getpid()))
            except OSError:  # a full disk; a child that starts MPI counts as the rank then
                pass
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_parent=self._forked)
        hook_children()  # children that start MPI would take themselves for this rank
        self.tell(
            "joined",
            size=self.size,
            host=os.uname().nodename,
            mpi_rank=rank,
            mpi_size=size,
            user=self.mpi_user,
            library=mpi.Get_library_version().strip().split("\n")[0],
            path=self.library_path(),
        )

    def _forked(self) -> None:
        """Reports the first child that was forked with MPI in it: if it calls MPI, ranks mix up."""
        if not self.has_forked and self.in_mpi:
            self.has_forked = True
            self.tell("forked", place=load_part("rank/post_mortem").place(sys._getframe(1)))

    @property
    def in_mpi(self) -> bool:
        """Returns True between MPI_Init and MPI_Finalize, in the process the launcher knows."""
        mpi = self.mpi
        return bool(
            mpi and os.getpid() == self.pid and mpi.Is_initialized() and not mpi.Is_finalized()
        )

    def _finalize(self) -> None:
        """Reports that the rank ended well; the last of the exit handlers."""
        import mpi4py

        # The world of an elastic run goes on without it, or cannot be finalized.
        failing = os.environ.get("SHANTY_FAILING")
        if self.in_mpi and not self.failing and failing:
            if failing == "0":
                self.tell("finalized")
                reports.note_finalized(b"0")
            load_part("rank/ending").leave(0)
        if self.in_mpi and not self.failing and mpi4py.rc.finalize is not False:
            unreceived = load_part("rank/unreceived")
            unreceived.note(self.mpi, self.rank)
            self.tell("leaving")
            try:
                self.mpi.Finalize()
            except Exception as error:  # noqa: BLE001  mpi4py's, as MPICH has it for such a message
                last = str(error).strip().split("\n")[-1]
                why = f"MPI_Finalize failed: {last.partition(': ')[2] or last}"
                fix = unreceived.MATCH if "unmatched" in why else ""
                self.failing = True
                self.tell("failed", code=1, why=why, fix=fix, at=time.monotonic())
                load_part("rank/ending").leave(1)
        if self.mpi.Is_finalized() and os.getpid() == self.pid:
            self.tell("finalized")
            reports.note_finalized()

    def die(self, code: int, why: str, fix: str = "") -> None:
        """Ends a rank that failed: MPI_Finalize would wait for the others indefinitely."""
        self.failing = True
        self.tell("failed", code=code, why=why, fix=fix, at=time.monotonic())
        load_part("rank/ending").end(self.rank, code, self.frozen)

    def refused(self, error: str) -> None:
        """Ends a rank whose pool got no workers: it would wait for their results indefinitely.

        From any thread. Exit handlers are left out, because some of them wait for the pool.
        """
        self.tell("failed", code=1, why=f"{reports.UNSPAWNED}: {error}", at=time.monotonic())
        ending = load_part("rank/ending")
        ending.write_files(self.frozen)
        ending.leave(1)


def words(error: BaseException) -> str:
    """Returns an exception's type and text; it has none where its own __str__ fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  whatever that raises
        text = "<exception str() failed>"  # as Python's own tracebacks have it
    return f"{type(error).__name__}: {text}"


def exit_status(status: object) -> tuple[int, str]:
    """Returns the exit code that sys.exit(status) means, and why the rank ends; 0 is success."""
    if status is None:
        return 0, ""
    if not isinstance(status, int):
        return 1, str(status)
    if status and status & 0xFF == 0:
        return 1, (
            f"sys.exit({status}): an exit code has 8 bits, so this one is 0 to the system; "
            "the run counts it as a failure"
        )
    return status & 0xFF, f"sys.exit({status!r})"


class ImportFollower:
    """Passes mpi4py.MPI to `then` once it is imported, and some other modules to hooks.

    It is first in sys.meta_path. `claim` returns whether this process is the rank.
    """

    hooks = {  # noqa: RUF012  typing takes time to import
        "torch.distributed.distributed_c10d": "import_hooks.torch meeting.torch",  # it makes groups
        "torch.distributed.rpc": "meeting.torch_rpc",
        "xgboost": "import_hooks.xgboost meeting.xgboost",
        "xgboost.tracker": "meeting.xgboost_tracker",
        "mlx.core": "import_hooks.mlx",  # it brings up MPI
        "mpi4py.futures._core": "import_hooks.futures",  # it spawns processes
        "shanty.collectives.regrowth": "import_hooks.regrowth",
        "jax._src.clusters": "import_hooks.jax",  # it looks for the other processes
        "jax._src.distributed": "meeting.jax",
        "tensorflow.python.eager.context": "meeting.tensorflow",
        "jax._src.xla_bridge": "import_hooks.jax_gloo",  # it joins their CPUs
        "accelerate.state": "import_hooks.accelerate",  # it finds no ranks without a GPU
        # What trains a model:
        "torch.optim.optimizer": "training.torch",
        "xgboost.core": "training.trainer",
        "lightgbm.basic": "import_hooks.lightgbm training.trainer",
        "catboost.core": "training.trainer",
        "keras.src.backend.torch.trainer": "training.trainer",
        "keras.src.backend.jax.trainer": "training.trainer",
        "keras.src.backend.tensorflow.trainer": "training.trainer",
        "tf_keras.src.engine.training": "training.trainer",
        "tensorflow.python.eager.backprop": "training.trainer",
        "tensorflow.python.training.optimizer": "training.trainer",
        "mlx.optimizers.optimizers": "training.trainer",
        "jax._src.api": "training.jax",
    }

    def __init__(
        self, process: RankProcess, then: Callable[[Any], None], claim: Callable[[], bool]
    ) -> None:
        self.process = process
        self.then = then
        self.claim = claim

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Finds one of the modules as other finders would, with a loader that calls back."""
        during: Mapping[str, str] = {}
        if name == "mpi4py.MPI":
            # A child of the rank gets a world of its own: the launcher expects one process a rank,
            # and would let another one wait indefinitely, or end it.
            if self.process.is_childs():
                during = processes.leave_launcher(os.environ)
            spec, then = self._find_mpi(name, path, target), self.then
        elif name in self.hooks:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            then = self._offer
        else:
            return None
        if spec is not None and spec.loader is not None:
            loader = load_part("rank/calling_loader").CallingLoader
            spec.loader = loader(spec.loader, then, during)
        return spec

    def _find_mpi(self, name: str, path: Sequence[str] | None, target: Any) -> Any:
        """Finds it by the other finders, as mpi4py's own loads the libmpi."""
        child = self.process.is_childs()
        _bind(os.environ.get("MPI4PY_LIBMPI", ""))
        for finder in [each for each in sys.meta_path if each is not self]:
            try:
                spec = finder.find_spec(name, path, target)
            except RuntimeError:
                if not child:
                    self.process.loading(os.environ.get("MPI4PY_LIBMPI", ""))
                raise
            if spec is not None and spec.loader is not None:
                if not child:
                    self.process.loading(RankProcess.library_path())
                self.process.mpi_user = _importer()
                return spec
        return None

    def _offer(self, module: Any) -> None:
        for each in self.hooks[module.__name__].split():
            part, _, hook = each.partition(".")
            getattr(load_part("rank/" + part), hook)(module, self.process, self.claim)


def _bind(library: str) -> None:
    """Resolves all functions that an MPI's library calls, before another library can provide them.

    TensorFlow exports an hwloc of its own: functions of hwloc that Open MPI 4.1 calls only at its
    end would be those of TensorFlow, and crash.
    """
    if os.path.isfile(library):
        import ctypes

        with contextlib.suppress(OSError):  # mpi4py reports what is wrong
            ctypes.CDLL(library, os.RTLD_NOW)


def _importer() -> str:
    """Returns the name of the package whose code imports mpi4py.MPI; "" if that is unknown."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in ("", "importlib", "_shanty_instrumentation", "mpi4py"):
            return name
        frame = frame.f_back
    return ""


class HorovodFinder:
    """Finds our own horovod where Python has none; early in sys.meta_path."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Finds Horovod, as `find_horovod` decides."""
        if name != "horovod":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        return load_part("rank/import_hooks").find_horovod(name, target, others)


def hook_children() -> None:
    """Lets the Python processes that this one starts find the same modules.

    Processes of multiprocessing import the rank's script, too.
    """
    hook = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if hook not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([hook, *paths])


class FallbackFinder:
    """Finds a package in `folder` where Python has none; last in sys.meta_path."""

    def __init__(self, package: str, folder: str) -> None:
        self.package = package
        self.folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Finds our package in our folder; nothing else is found."""
        if path is not None or name != self.package:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, [self.folder], target)
        if spec is not None and name == "shanty":
            hook_children()
        return spec


def prefer_own(folder: str) -> None:
    """Has `shanty` imported from the folder, where this Python has another version of it."""
    import importlib.util

    spec = importlib.util.find_spec("shanty")
    if folder and spec is not None and spec.origin != os.path.join(folder, "shanty/__init__.py"):
        sys.meta_path.insert(0, FallbackFinder("shanty", folder))


def find_packages(environ: Mapping[str, str]) -> None:
    """Lets packages be found that Python has not, or not as the run is to have them."""
    for variable, package in (("SHANTY_PACKAGE", "shanty"), ("SHANTY_MPI4PY", "mpi4py")):
        folder, _, python = environ.get(variable, "").partition("|")
        if folder and python in ("", sys.implementation.cache_tag):
            sys.meta_path.append(FallbackFinder(package, folder))
    sys.meta_path.insert(0, HorovodFinder())
    if environ.get(TENSORFLOW_1, "0") != "0":
        load_part("rank/tensorflow1").install()


def place(environ: Mapping[str, str]) -> tuple[str, int, str] | None:
    """Returns run directory, rank and world of this process; None when it is not a rank."""
    rank = processes.number(environ, processes.RANK)
    run_dir = environ.get("SHANTY_ATTEMPT_DIR") or environ.get("SHANTY_RUN_DIR", "")
    if rank is None or not run_dir or reports.FIFO not in environ:
        return None
    return run_dir, rank, environ.get("SHANTY_WORLD", "0")


def start() -> RankProcess | None:
    """Begins to instrument this process; None when it is not a rank of a run."""
    here = place(os.environ)
    if here is None:
        return None
    find_packages(os.environ)
    return RankProcess(*here)
