"""Horovod's beginning and end, and the questions about the world between them."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shanty.collectives import process_sets as registry
from shanty.collectives import survivors
from shanty.collectives.exchange import exchange, wait
from shanty.collectives.process_sets import ProcessSet, Topology, World, global_process_set
from shanty.collectives.settings import DYNAMIC, Settings
from shanty.collectives.timeline import Timeline
from shanty.runtime.rundir import FAILING, RUN_DIR, SEAT, RunDir

if TYPE_CHECKING:
    from mpi4py import MPI

    from shanty.collectives.kernels import Kernels

__all__ = ["is_initialized", "shutdown", "start_timeline", "stop_timeline"]
__all__ += ["cross_rank", "cross_size", "local_rank", "local_size", "rank", "size"]
__all__ += ["gloo_enabled", "is_homogeneous", "mpi_enabled", "mpi_threads_supported"]
__all__ += ["ccl_built", "ddl_built", "gloo_built", "mpi_built", "nccl_built", "rocm_built"]

_TAG = 0x5A18  # of Comm.Create_group, whose tags are apart from those of messages
Value = TypeVar("Value")
_SETS = Sequence[ProcessSet] | str | None

_lock = threading.RLock()


def init(
    comm: Sequence[int] | MPI.Comm | None, process_sets: _SETS, kernels: Kernels, name: str
) -> bool:
    """Start as a front end's `init` says; returns whether it was the first call.

    comm, process_sets: as that takes them; and it raises what this raises. kernels: of the
    tensors. name: the front end's, for messages.
    """
    sets = _listed(process_sets)
    if survivors.is_elastic() and not comm and registry.standing is None:
        return survivors.start(lambda: _init(comm, sets, kernels, name), shutdown)
    return _init(comm, sets, kernels, name)


def _init(
    comm: Sequence[int] | MPI.Comm | None, sets: list[ProcessSet], kernels: Kernels, name: str
) -> bool:
    with _lock:
        world = registry.standing
        if world is not None:
            if world.kernels is not kernels:
                raise RuntimeError(
                    f"{name}: hvd.init() has been called by {world.settings.name} already, for its "
                    "own tensors. A process has one front end at a time; hvd.shutdown() ends it."
                )
            _find_again(world, sets)
            return False
        settings = Settings.read(name=name)
        world = _formed(comm, sets, kernels, settings)
        global_process_set.ranks = list(world.ranks[0])
        global_process_set.mpi_comm = None if isinstance(comm, Iterable) else comm
        registry.standing = world
        if survivors.is_elastic() and not comm:  # of all ranks that are left
            place = world.topology
            survivors.renumber(place.rank, place.size, place.local_rank, place.local_size)
        atexit.unregister(_shutdown_at_exit)
        atexit.register(_shutdown_at_exit, os.getpid())  # a fork does not end what is its parent's
        return True


def shutdown() -> None:
    """End it on this rank, and with it what other ranks have under way with this one: that fails.

    Nothing happens where it has not been started. `init` may start it again, on all ranks.
    """
    with _lock:
        world = registry.standing
        if world is not None:
            registry.standing = None
            world.end()


def restart(init: Callable[[], object]) -> bool:
    """End it and start it again by `init`, on all ranks; returns whether ranks were lost.

    In an elastic run the ranks that are left go on together, whatever happens meanwhile.
    """
    if not survivors.is_elastic():
        shutdown()
        init()
        return False
    from mpi4py import MPI

    before = survivors.count()
    survivors.revoke()
    survivors.all_say(False)
    with suppress(MPI.Exception):
        shutdown()
    survivors.shrink()
    init()
    return survivors.count() < before


def is_initialized() -> bool:
    """Return whether `init` has been called, and not `shutdown` since."""
    return registry.standing is not None


def _asked(name: str, doc: str) -> Callable[[], int]:
    return _named(name, doc, lambda: getattr(registry.current().topology, name))


def _always(name: str, doc: str, value: Value) -> Callable[[], Value]:
    return _named(name, doc, lambda: value)


def _named(name: str, doc: str, answer: Callable[[], Value]) -> Callable[[], Value]:
    answer.__name__ = answer.__qualname__ = name
    answer.__doc__ = doc
    return answer


size = _asked(
    "size", "Return how many ranks there are. ValueError before `init`, as for all questions here."
)
rank = _asked("rank", "Return this process's number among all, from 0.")
local_size = _asked("local_size", "Return how many ranks there are on this host.")
local_rank = _asked(
    "local_rank", "Return this process's number among those of its host, from 0: its GPU."
)
cross_size = _asked("cross_size", "Return how many hosts have a rank with this local rank.")
cross_rank = _asked(
    "cross_rank",
    "Return this process's number among the ranks with its local rank, one a host, from 0.",
)
mpi_enabled = _always("mpi_enabled", "Return whether MPI carries the tensors: true.", True)
mpi_built = _always("mpi_built", "Return whether there is MPI: true.", True)
gloo_enabled = _always(
    "gloo_enabled", "Return whether Gloo carries the tensors: false, MPI does.", False
)
gloo_built = _always("gloo_built", "Return whether there is Gloo for these calls: false.", False)
nccl_built = _always(
    "nccl_built",
    "The version code of NCCL where it carries the tensors of these calls, else 0: here 0.",
    0,
)
ddl_built = _always("ddl_built", "Return whether there is IBM's DDL: false.", False)
ccl_built = _always("ccl_built", "Return whether there is oneCCL: false.", False)
rocm_built = _always("rocm_built", "Return whether there is ROCm for these calls: false.", False)


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks."""
    return registry.current().topology.homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what happens to each tensor to a file from now on, as a Chrome trace; on rank 0.

    A timeline that is already being written ends. mark_cycles: whether to show cycles.
    Raises ValueError before `init`.
    """
    world = registry.current()
    if world.topology.rank == 0:
        world.trace(_timeline(world, file_path, mark_cycles))


def stop_timeline() -> None:
    """Finish the file of the timeline, if one is being written. ValueError before `init`."""
    registry.current().trace(None)


def mpi_threads_supported() -> bool:
    """Return whether the script may call MPI itself (MPI_THREAD_MULTIPLE): always true here.

    ValueError before `init`, which fails where it is not so.
    """
    registry.current()
    return True


def start_mpi(call: str, *, serialized: bool = False) -> None:
    """Start MPI if need be. call: what needs it. RuntimeError without MPI_THREAD_MULTIPLE.

    serialized: whether MPI_THREAD_SERIALIZED is enough, as it is if the script never calls MPI.
    """
    from mpi4py import MPI

    if not MPI.Is_initialized():  # mpi4py.rc.initialize = False
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(_finalize)
    if MPI.Query_thread() < (MPI.THREAD_SERIALIZED if serialized else MPI.THREAD_MULTIPLE):
        least = " (MPI_THREAD_SERIALIZED if the script calls MPI nowhere else)"
        raise RuntimeError(
            f"{call} needs MPI_THREAD_MULTIPLE{least if serialized else ''}, since it "
            "communicates in a thread of its own, but "
            "MPI was initialised without it. mpi4py asks for it by default; something changed "
            "mpi4py.rc.thread_level, or initialised MPI before mpi4py was imported."
        )


def promised_world() -> MPI.Intracomm:
    """Return MPI's world, which was started. Raises as `check_world`."""
    from mpi4py import MPI

    world, library = MPI.COMM_WORLD, MPI.Get_library_version().partition("\n")[0].strip("\0 ")
    spares = int(os.environ.get(survivors.SPARES) or 0)
    check_world(world.rank, world.size - spares, library, os.environ)
    return world


def check_world(rank: int, size: int, library: str, env: Mapping[str, str]) -> None:
    """Raise RuntimeError when `env` promises another place than MPI's `rank` in a world of `size`.

    Another size means that the launcher and the library belong to different MPIs: each process then
    sees a world of its own, and N copies would train independently without an error. With another
    rank the script would compute as one rank and communicate as another.
    """
    promised = env.get("WORLD_SIZE", ""), env.get("RANK", "")
    if not promised[0].isdigit():
        return
    if int(promised[0]) != size:
        found, variable = f"a world of {size}", f"WORLD_SIZE={promised[0]}"
    elif promised[1].isdigit() and int(promised[1]) != rank:
        found, variable = f"rank {rank} of {size}", f"RANK={promised[1]}"
    else:
        return
    raise RuntimeError(
        f"MPI reports {found}, but {variable} in the environment. "
        f"The MPI library in use is {library!r}; a launcher of another MPI cannot tell it about "
        "the other ranks. Start the script with `shanty run`, or with the mpirun that belongs to "
        f"this library; or unset {variable.partition('=')[0]} if it is a leftover."
    )


# ---- within ------------------------------------------------------------------------------------

_spell, _members = registry.spell, registry.members


def _timeline(world: World, path: str, mark_cycles: bool) -> Timeline:
    return Timeline(path, mark_cycles, world.settings.name)


def _part_of_profile(world: World) -> Timeline | None:
    """This rank's timeline for `shanty run --profile`; the run's agent puts them together."""
    if RUN_DIR not in os.environ:
        return None
    folder = RunDir(Path(os.environ[RUN_DIR])).profile_parts
    with suppress(OSError):  # then the timeline says what is wrong
        folder.mkdir(parents=True, exist_ok=True)
    rank = int(os.environ.get(SEAT) or os.environ.get("RANK") or world.topology.rank)
    path = folder / f"rank-{rank}-{time.monotonic_ns()}.json"  # a script may begin again
    place: dict[str, str | int] = {"rank": rank, "host": world.settings.profile}
    return Timeline(path, world.settings.timeline_mark_cycles, world.settings.name, place)


def _listed(wanted: _SETS) -> list[ProcessSet]:
    if wanted is None or (isinstance(wanted, str) and wanted.lower() == "dynamic"):
        return []
    if isinstance(wanted, str) or not all(isinstance(each, ProcessSet) for each in wanted):
        raise ValueError('process_sets must be a list of hvd.ProcessSet, or "dynamic".')
    return list(wanted)


def _find_again(world: World, sets: Sequence[ProcessSet]) -> None:
    """Give the objects of a second `init` the numbers of process sets that are there."""
    numbers = {ranks: number for number, ranks in world.ranks.items()}
    for each in sets:
        if each.process_set_id is None:
            number = numbers.get(_members(each, world.comm))
            if number is None:
                raise ValueError(
                    f"hvd.init() has been called before, without {each}: add_process_set adds it."
                )
            world.hold(each, number)


def _communicator(comm: Sequence[int] | MPI.Comm | None, settings: Settings) -> MPI.Intracomm:
    """A communicator of our own, of the ranks that `comm` names. Collective over them."""
    from mpi4py import MPI

    start_mpi("hvd.init()")
    if comm is not None and not isinstance(comm, Iterable):
        survivors.refuse_spares("hvd.init() for a communicator")
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise ValueError("comm must be a list of ranks or an mpi4py communicator.")
        return _duplicate(comm, settings)
    ranks = list(comm or ())
    if not ranks and survivors.is_elastic():
        return _duplicate(survivors.living(promised_world), settings)
    survivors.refuse_spares("hvd.init() for some of the ranks")
    world = promised_world()
    if not ranks:
        return _duplicate(world, settings)
    if world.rank not in ranks or len(set(ranks)) < len(ranks) or max(ranks) >= world.size:
        raise ValueError(
            f"hvd.init(comm={ranks}) on rank {world.rank} of {world.size}: the list must name "
            "this rank, and others of MPI's world, once each. Ranks that take no part must not "
            "call it."
        )
    group = world.Get_group().Incl(ranks)
    made = world.Create_group(group, _TAG)
    group.Free()
    return made


def _formed(
    comm: Sequence[int] | MPI.Comm | None,
    sets: list[ProcessSet],
    kernels: Kernels,
    settings: Settings,
) -> World:
    own = _communicator(comm, settings)
    world = World(own, _topology(own, settings), settings, kernels)
    if world.topology.rank == 0 and settings.timeline not in ("", DYNAMIC):
        world.timeline = _timeline(world, settings.timeline, settings.timeline_mark_cycles)
    elif settings.profile:
        world.timeline = _part_of_profile(world)
    try:
        world.form(0)
        call = f"init(process_sets=[{', '.join(map(_spell, sets))}])"
        world.add(sets, [_members(each, own) for each in sets], call)
    except BaseException:
        world.end()
        raise
    return world


def _duplicate(comm: MPI.Intracomm, settings: Settings) -> MPI.Intracomm:
    made, request = comm.Idup()
    words = "hvd.init(), which all ranks must call, waits for other ranks"
    wait(request, words, settings)
    return survivors.track(made)


def _topology(comm: MPI.Intracomm, settings: Settings) -> Topology:
    """Find this rank's place: as the run says, else by what memory the ranks share."""
    told = registry.told(comm.rank, comm.size, os.environ)
    seats = exchange(comm, told, "init()", settings)
    known = [each for each in seats if each is not None]
    if len(known) < len(seats):
        from mpi4py import MPI

        near = survivors.track(comm.Split_type(MPI.COMM_TYPE_SHARED))
        seat = near.rank, near.size
        near.Free()
        known = exchange(comm, seat, "init()", settings)
    return registry.topology(comm.rank, known)


def _shutdown_at_exit(process: int) -> None:
    if os.getpid() == process and FAILING not in os.environ:
        shutdown()


def _finalize() -> None:
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()
