"""Sees the world of `mlx.core.distributed` come up in a rank, or says why it does not.

MLX loads an MPI itself, without mpi4py, and where it finds none that it can use every process
quietly becomes rank 0 of 1. Loaded by path, as all that is in a rank, once the script has imported
mlx.core.

What is said of MLX here is that of 0.32: it takes Open MPI only, from the path in
MLX_MPI_LIBNAME; it calls MPI_Init itself, whether or not somebody has, and MPI_Finalize from a
destructor, after Python's own exit handlers.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

LIBRARY = "MLX_MPI_LIBNAME"  # what the run's MPI sets where MLX can use it
_OTHER = "MLX_RANK"  # set for every other backend of MLX
_BACKEND = 1  # which of the arguments of `init` it is
_HEARD = 10.0  # seconds in which the controller ends a rank that has told it that it is alone
_LONGEST_VERSION = 8192  # bytes; MPICH's MPI_MAX_LIBRARY_VERSION_STRING


class LoadedMpi:
    """The libmpi that MLX has loaded, with the few functions that `RankProcess` asks of mpi4py."""

    def __init__(self, path: str) -> None:
        import ctypes

        self._library = ctypes.CDLL(path)
        self._number = ctypes.c_int
        self._byref = ctypes.byref
        self._buffer = ctypes.create_string_buffer

    def _flag(self, function: str) -> bool:
        flag = self._number(0)
        getattr(self._library, function)(self._byref(flag))
        return bool(flag.value)

    def Is_initialized(self) -> bool:  # noqa: N802  as mpi4py calls it
        """Return True once MPI_Init was called."""
        return self._flag("MPI_Initialized")

    def Is_finalized(self) -> bool:  # noqa: N802
        """Return True once MPI_Finalize was called."""
        return self._flag("MPI_Finalized")

    def Finalize(self) -> None:  # noqa: N802
        """Leave MPI."""
        self._library.MPI_Finalize()

    def Get_library_version(self) -> str:  # noqa: N802
        """Return what the library says of itself."""
        text, length = self._buffer(_LONGEST_VERSION), self._number(0)
        self._library.MPI_Get_library_version(text, self._byref(length))
        return text.value.decode(errors="replace")


def offer(core: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Stand around `init` of the module `mlx.core`, in the rank `process`.

    `claim` tells whether this process is the rank, and is asked when it is about to join; helpers
    of a rank are left alone.
    """
    distributed = core.distributed
    init = distributed.init

    @functools.wraps(init)
    def joining(*args: Any, **kwargs: Any) -> Any:
        backend = kwargs.get("backend", args[_BACKEND] if len(args) > _BACKEND else "any")
        by_mpi = backend == "mpi" or (backend == "any" and _OTHER not in os.environ)
        if not by_mpi or not claim():
            return init(*args, **kwargs)
        distributed.init = init  # this is about the first call only
        library = os.environ.get(LIBRARY, "")
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
            _alone(
                process, f"MLX found no world in {LIBRARY}={library}", f"leave {LIBRARY} to shanty"
            )
        _joined(process, group)
        return group

    distributed.init = joining


def _joined(process: Any, group: Any) -> None:
    """Tell of the world that MLX is in now, if any, and see to its end."""
    path = process.library_path()
    if not path:
        return
    mpi = LoadedMpi(path)
    if not mpi.Is_initialized():
        return
    process.joined(mpi, group.rank(), group.size())

    def leave() -> None:
        if group.size() == 1 and process.in_mpi and not process.failing:
            mpi.Finalize()  # MLX forgets it when it finds itself alone
        process.tell("finalized")  # else MLX does it, a little later

    atexit.register(leave)


def _alone(process: Any, why: str, fix: str) -> None:
    """Have the run ended, because this rank would train by itself; does not return."""
    process.tell("alone", why=why, fix=fix)
    time.sleep(_HEARD)
    raise RuntimeError(f"{why}: {fix}")
