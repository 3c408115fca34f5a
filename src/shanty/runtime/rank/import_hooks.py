"""Changes some modules that a rank's script imports, and finds stand-ins for others.

Loaded by path, as all code in a rank, once the script has imported one of the modules or `horovod`.
A hook gets the module, the `RankProcess`, and a function that returns whether this process is the
rank and not a helper of it.

MLX 0.32 takes Open MPI only, from the path in MLX_MPI_LIBNAME. It calls MPI_Init itself, even where
MPI is initialised already, and MPI_Finalize from a destructor, after Python's exit handlers. Where
it cannot use the MPI, every process silently becomes rank 0 of 1.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import time
from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

HOROVOD = "SHANTY_HOROVOD"  # "0" never takes our horovod, "1" also where Horovod is installed
XGBOOST = "SHANTY_XGBOOST"  # "0" leaves XGBoost alone
RABIT = "xgboost.rabit"
MLX_LIBRARY = "MLX_MPI_LIBNAME"  # what the run's MPI sets where MLX can use it
ADDRESSES = "SHANTY_ADDRESSES"  # one for each rank to listen at, as far as they are known
_RANK_VARIABLES = frozenset(("RANK", "WORLD_SIZE", "LOCAL_RANK", ADDRESSES))
# Accelerate's names of the devices besides CUDA; TPUs come by torch_xla.
_ACCELERATORS = (
    "torch_xla", "mps", "xpu", "npu", "mlu", "sdaa", "musa", "hpu", "neuron",
)  # fmt: skip
_YES = ("1", "true", "yes", "y", "t", "on")
_NEEDS = (3, 11)  # the Python of all that a script imports of shanty
_TRACKER = "DMLC_TRACKER_URI"  # in rabit's settings: where the ranks find each other
_OTHER_MLX = "MLX_RANK"  # set for every other backend of MLX
_ENDING = 10.0  # seconds in which the controller ends a rank that has reported to be alone
_LONGEST_VERSION = 8192  # bytes; MPICH's MPI_MAX_LIBRARY_VERSION_STRING


def _argument(args: Sequence[Any], kwargs: dict[str, Any], name: str, at: int, other: str) -> Any:
    return kwargs.get(name, args[at] if len(args) > at else other)


def _find_ours(name: str, folder: str, target: Any = None) -> Any:
    """Return the spec of shanty's own module `name` in `folder`; None where shanty is missing."""
    if sys.version_info < _NEEDS:
        python, wanted = (".".join(map(str, each[:2])) for each in (sys.version_info, _NEEDS))
        raise ModuleNotFoundError(
            f"No module named {name!r}: shanty's own needs Python {wanted}, this is {python}",
            name=name,
        )
    try:  # of the same shanty as the modules that it will import
        folders = importlib.import_module("shanty").__path__
    except ImportError:
        return None
    places = [os.path.join(each, folder) for each in folders]
    spec = importlib.machinery.PathFinder.find_spec(name, places, target)
    instrumentation = sys.modules.get("_shanty_instrumentation")
    if spec is not None and instrumentation is not None:
        instrumentation.hook_children()
    return spec


def find_horovod(name: str, target: Any, finders: Sequence[Any]) -> Any:
    """Return the spec for the package `name`, Horovod's own or ours; None where neither is found.

    `finders` are the other finders. A mere folder of that name is not an installed package.
    """
    choice = os.environ.get(HOROVOD, "")
    if choice == "0":
        return None
    for finder in finders if choice != "1" else ():
        spec = finder.find_spec(name, None, target) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None and spec.origin is not None:
            return spec
    return _find_ours(name, "compat", target)


def torch(c10d: Any, *_: object) -> None:
    """Make `mpi` an available backend without an import of shanty.torch in the script.

    It is imported when a group asks for the backend. A PyTorch that was built with MPI keeps its
    own.
    """
    helper = getattr(c10d, "_new_process_group_helper", None)
    if getattr(c10d, "_MPI_AVAILABLE", True) or helper is None:
        return

    def with_mpi(*args: Any, **kwargs: Any) -> Any:
        backend = _argument(args, kwargs, "backend", 3, "")
        if "mpi" in str(backend) and "shanty.torch" not in sys.modules:
            importlib.import_module("shanty.torch")
            return c10d._new_process_group_helper(*args, **kwargs)  # which it has replaced
        return helper(*args, **kwargs)

    c10d._new_process_group_helper = with_mpi
    # Accelerate chooses it without being asked where it is available.
    found = (importlib.util.find_spec(name) for name in ("shanty", "mpi4py", "numpy"))
    c10d._MPI_AVAILABLE = sys.version_info >= _NEEDS and None not in found


def accelerate(state: Any, _: Any, claim: Callable[[], bool]) -> None:
    """Let Accelerate, and the Trainer of transformers, join the ranks on hosts without GPUs.

    There it has to be asked to use the CPUs (`ACCELERATE_USE_CPU`, `cpu=True`); otherwise every
    process would train by itself. A choice of the user wins.
    """
    partial = state.PartialState
    start = partial.__init__

    def has_accelerator() -> bool:
        checks = (getattr(state, f"is_{name}_available", None) for name in _ACCELERATORS)
        return state.torch.cuda.is_available() or any(check and check() for check in checks)

    def on_cpus() -> bool:
        if os.environ.get("WORLD_SIZE", "1") == "1" or "ACCELERATE_TORCH_DEVICE" in os.environ:
            return False
        said = os.environ.get("ACCELERATE_USE_CPU", "").lower()
        return (said in _YES if said else not has_accelerator()) and claim()

    @functools.wraps(start)
    def joining(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        start(self, cpu or (not partial._shared_state and on_cpus()), **kwargs)

    partial.__init__ = joining


def regrowth(module: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Let a rank that takes the place of a lost one report that it has joined the others."""
    join = module.join

    def reporting(size: int) -> Any:
        made = join(size)
        if claim():
            process.joined(process.mpi, process.rank, process.size)
        return made

    module.join = reporting


def futures(core: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Guard `MPIPoolExecutor`, whose workers MPI_Comm_spawn starts, in a thread of mpi4py's own.

    When MPI refuses to start them, that thread ends with a traceback, and the script would wait for
    results indefinitely. With `python -m mpi4py.futures` no process is spawned.
    """
    spawn = getattr(core, "client_spawn", None)
    if spawn is None:
        return

    @functools.wraps(spawn)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        if claim():
            process.tell("spawning")
        try:
            return spawn(*args, **kwargs)
        except core.MPI.Exception as error:
            sys.__excepthook__(type(error), error, error.__traceback__)
            process.refused(str(error))

    core.client_spawn = reporting


def xgboost(module: Any, *_: object) -> None:
    """Let our `xgboost.rabit` be found, as an attribute and by import.

    It changes nothing until `rabit.init()`. An XGBoost that has a rabit itself keeps it, but cannot
    silently make each rank a world of its own.
    """
    if os.environ.get(XGBOOST, "") == "0":
        return
    if hasattr(module, "rabit"):
        _guard_rabit(module.rabit, module.__version__)
        return
    other = getattr(module, "__getattr__", None)

    def find(name: str) -> Any:
        if name == "rabit":
            try:
                return importlib.import_module(RABIT)
            except ImportError as error:
                text = f"module 'xgboost' has no attribute 'rabit': {error}"
                raise AttributeError(text) from error
        if other is not None:
            return other(name)
        raise AttributeError(f"module 'xgboost' has no attribute {name!r}")

    module.__getattr__ = find
    sys.meta_path.insert(0, RabitFinder())


def _guard_rabit(rabit: Any, version: str) -> None:
    """Let the `init` of XGBoost's own rabit fail where it is not given the other ranks."""
    own, ranks = rabit.init, os.environ.get("WORLD_SIZE", "1")

    def init(args: Any = None) -> Any:
        tracked = _TRACKER in os.environ or any(_TRACKER in str(word) for word in args or ())
        if ranks != "1" and not tracked:
            raise RuntimeError(
                f"The rabit of XGBoost {version} knows no MPI: each of the {ranks} ranks would "
                "train by itself, on all rows. With XGBoost 3 shanty joins them: "
                f"pip install -U xgboost. {XGBOOST}=0 leaves XGBoost alone."
            )
        return own(args)

    rabit.init = init


def lightgbm(basic: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Let a script that names as many machines as there are ranks train as one job of them.

    LightGBM's own network looks for this process among the machines by address and port, and takes
    each process on this machine for the first. It gets the addresses of the run instead. Another
    number of machines, as with Dask's workers, is left alone.
    """
    booster = basic.Booster
    own = booster.set_network

    @functools.wraps(own)
    def set_network(
        self: Any,
        machines: Any,
        local_listen_port: int = 12400,
        listen_time_out: int = 120,
        num_machines: int = 1,
    ) -> Any:
        named = machines.split(",") if isinstance(machines, str) else list(machines)
        addresses = os.environ.get(ADDRESSES, "").split(",")
        if process.size > 1 and {len(named), num_machines, len(addresses)} == {process.size}:
            machines = ",".join(addresses)
            local_listen_port = int(addresses[process.rank].rpartition(":")[2])
        return joining(self, machines, local_listen_port, listen_time_out, num_machines)

    def describe(_: Any, machines: str | list[str], *others: Any) -> dict[str, Any]:
        first = machines.split(",")[0] if isinstance(machines, str) else next(iter(machines))
        return {"size": others[-1], "address": first}

    announced = sys.modules["_shanty_instrumentation"].load_part("rank/meeting").announced
    joining = announced(process, claim, "LightGBM's set_network", own, describe)
    booster.set_network = set_network


class RabitFinder:
    """Finds `xgboost.rabit`, first in sys.meta_path from the import of xgboost on."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Find the module in shanty.compat, unless XGBoost has one; nothing else is found."""
        if name != RABIT:
            return None
        own = importlib.machinery.PathFinder.find_spec(name, path, target)
        return own or _find_ours(name, "compat/xgboost_rabit", target)


def jax(clusters: Any, *_: object) -> None:
    """Let a bare `jax.distributed.initialize()` find the ranks of the run, under every MPI.

    JAX asks each class of clusters in turn whether it is present; its own classes know Open MPI 4
    and Slurm. Arguments of the script and its variables take precedence over all of them.
    """
    base: Any = getattr(clusters, "ClusterEnv", None)
    if not hasattr(base, "_cluster_types"):
        return

    class ShantyCluster(base):  # type: ignore[misc]
        name = "shanty"

        @classmethod
        def is_env_present(cls) -> bool:
            return _RANK_VARIABLES.issubset(os.environ)

        @classmethod
        def get_coordinator_address(
            cls, timeout_secs: object = None, override_coordinator_port: str | None = None
        ) -> str:
            address = os.environ[ADDRESSES].partition(",")[0]
            host, _, port = address.rpartition(":")
            return f"{host}:{override_coordinator_port or port}"

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["WORLD_SIZE"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["RANK"])

        @classmethod
        def get_local_process_id(cls) -> int | None:
            """Each of a host's ranks gets one of its GPUs; the only one gets all."""
            here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            seen = os.environ.get("CUDA_VISIBLE_DEVICES")
            too_few = seen is not None and len(seen.split(",")) < here  # the user has set them
            return None if here == 1 or too_few else int(os.environ["LOCAL_RANK"])

    base._cluster_types.remove(ShantyCluster)
    base._cluster_types.insert(0, ShantyCluster)


def jax_gloo(bridge: Any, *_: object) -> None:
    """Have JAX's collectives between CPUs go over the network of the run.

    Gloo would take the network of the host's own name, which may be 127.0.1.1.
    """
    library: Any = getattr(bridge, "_jax", None)
    make = getattr(library, "make_gloo_tcp_collectives", None)
    if make is None:
        return

    def over_the_runs_network(*args: Any, **kwargs: Any) -> Any:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
        if interface and len(args) < 2 and not {"hostname", "interface"}.intersection(kwargs):
            kwargs["interface"] = interface
        return make(*args, **kwargs)

    library.make_gloo_tcp_collectives = over_the_runs_network


def _loaded_mpi(path: str) -> Any:
    """Returns the libmpi that MLX has loaded, with the calls of mpi4py that `RankProcess` makes."""
    import ctypes

    library = ctypes.CDLL(path)

    def flag(function: str) -> bool:
        found = ctypes.c_int(0)
        getattr(library, function)(ctypes.byref(found))
        return bool(found.value)

    def version() -> str:
        text = ctypes.create_string_buffer(_LONGEST_VERSION)
        library.MPI_Get_library_version(text, ctypes.byref(ctypes.c_int(0)))
        return text.value.decode(errors="replace")

    return SimpleNamespace(
        Is_initialized=functools.partial(flag, "MPI_Initialized"),
        Is_finalized=functools.partial(flag, "MPI_Finalized"),
        Finalize=library.MPI_Finalize,
        Get_library_version=version,
    )


def mlx(core: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Report when `init` of `mlx.core.distributed` joins the world, or why it cannot."""
    distributed = core.distributed
    init = distributed.init

    @functools.wraps(init)
    def joining(*args: Any, **kwargs: Any) -> Any:
        backend = _argument(args, kwargs, "backend", 1, "any")
        by_mpi = backend == "mpi" or (backend == "any" and _OTHER_MLX not in os.environ)
        if not by_mpi or not claim():
            process.mlx_group = init(*args, **kwargs)
            return process.mlx_group
        distributed.init = init  # only the first call matters
        library = os.environ.get(MLX_LIBRARY, "")
        if not library and process.size > 1:
            _alone(process, "MLX works with Open MPI only", "choose it: shanty run --mpi openmpi")
        mpi4py = sys.modules.get("mpi4py.MPI")
        if library and mpi4py is not None and mpi4py.Is_initialized():
            raise RuntimeError(
                "MPI is up already, by mpi4py, and MLX brings it up itself, which may be done "
                "once only: call mx.distributed.init() before `from mpi4py import MPI`"
            )
        if os.path.isabs(library):
            process.loading(library)
        group = init(*args, **kwargs)
        if process.size > 1 and group.size() == 1:
            why = f"MLX found no world in {MLX_LIBRARY}={library}"
            _alone(process, why, f"leave {MLX_LIBRARY} to shanty")
        path = process.library_path()
        mpi = _loaded_mpi(path) if path else None
        if mpi is not None and mpi.Is_initialized():
            process.joined(mpi, group.rank(), group.size())
            atexit.register(leave, mpi, group)
        return group

    def leave(mpi: Any, group: Any) -> None:
        if group.size() == 1 and process.in_mpi and not process.failing:
            mpi.Finalize()  # MLX forgets it when it finds itself alone
        process.tell("finalized")  # else MLX finalizes MPI a little later

    distributed.init = joining


def _alone(process: Any, why: str, fix: str) -> None:
    """Have the run ended, because this rank would train by itself; does not return."""
    process.tell("alone", why=why, fix=fix)
    time.sleep(_ENDING)
    raise RuntimeError(f"{why}: {fix}")
