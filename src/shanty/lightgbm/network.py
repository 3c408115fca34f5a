"""Lends LightGBM the MPI of the run, in place of its own sockets.

LightGBM's C API accepts two external functions, a reduce-scatter and an allgather
(`LGBM_NetworkInitWithFunctions`; their types are in its include/LightGBM/meta.h), and builds all
other communication on them. Its network belongs to one thread.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from shanty._departures import Departures
from shanty.collectives import survivors
from shanty.lightgbm.errors import WorldError
from shanty.lightgbm.installed import lightgbm

_SPIN = 0.001  # seconds of looking without a rest: others are mostly there at once
_NAP = 0.0002
_LOOK = 0.1  # seconds between two looks for a rank that has left
_PARTING = 4  # seconds in which that rank may end the run with its error
_Bytes = NDArray[np.uint8]
_LENGTHS = ctypes.POINTER(ctypes.c_int32)
# dst += src: source, destination, bytes of an item, bytes of all.
_REDUCER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32)
# Input and its bytes, bytes of an item, start and bytes of each rank's block, how many of these,
# output and its bytes, the reducer.
_REDUCE_SCATTER = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, _LENGTHS, _LENGTHS, ctypes.c_int),
    *(ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
)
# Input and its bytes, start and bytes of each rank's block, how many of these, output, its bytes.
_ALLGATHER = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, ctypes.c_int32, _LENGTHS, _LENGTHS, ctypes.c_int),
    *(ctypes.c_void_p, ctypes.c_int32),
)


class _Network:
    """The communicator of LightGBM's, and the functions that it calls."""

    def __init__(self) -> None:
        if os.environ.get("SHANTY_SPARES"):
            raise WorldError("LightGBM has no use for --spares: start the run without them.")
        self.comm = MPI.COMM_WORLD.Dup()
        self.departures = Departures(self.comm)
        self.failed = False  # a rank has left a training that others went on with
        self.reduce_scatter = _REDUCE_SCATTER(self._guarded(self._reduce_scatter))
        self.allgather = _ALLGATHER(self._guarded(self._allgather))

    def begin(self) -> None:
        """Let LightGBM use it in this thread."""
        _check(
            lightgbm.basic._LIB.LGBM_NetworkInitWithFunctions(
                ctypes.c_int(self.comm.size),
                ctypes.c_int(self.comm.rank),
                ctypes.cast(self.reduce_scatter, ctypes.c_void_p),
                ctypes.cast(self.allgather, ctypes.c_void_p),
            )
        )

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Abort the world if the function fails: LightGBM would go on with missing data."""

        def call(*args: Any) -> None:
            try:
                function(*args)
            except WorldError as error:  # no exception can leave LightGBM's code
                print(f"shanty.lightgbm: {error} This rank ends.", file=sys.stderr)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(1)
            except BaseException:  # noqa: BLE001  ctypes would print it and go on
                sys.excepthook(*sys.exc_info())
                MPI.COMM_WORLD.Abort(1)

        return call

    def _reduce_scatter(
        self, source: int, size: int, item: int, starts: Any, lengths: Any, blocks: int,
        target: int, _: int, reducer: Any,
    ) -> None:  # fmt: skip
        """Give each rank the sum of its block.

        Halves are added up, as in LightGBM's own recursive halving: with 2, 4, 8 … ranks the sums
        are its own, to the bit.
        """
        counts, comm = lengths[:blocks], self.comm
        mine = counts[comm.rank]
        parts = np.empty((comm.size, mine), np.uint8)
        places = [each * mine for each in range(comm.size)]
        comm.Alltoallv(
            [_bytes(source, size), counts, starts[:blocks], MPI.BYTE],
            [parts, [mine] * comm.size, places, MPI.BYTE],
        )
        reduce = _REDUCER(reducer[0])
        left = comm.size
        while left > 1:
            half = (left + 1) // 2
            reduce(parts[half:].ctypes.data, parts.ctypes.data, item, (left - half) * mine)
            left = half
        _bytes(target, mine)[:] = parts[0]

    def _allgather(
        self, source: int, size: int, starts: Any, lengths: Any, blocks: int, target: int, room: int
    ) -> None:
        self._finish(
            self.comm.Iallgatherv(
                [_bytes(source, size), size, MPI.BYTE],
                [_bytes(target, room), lengths[:blocks], starts[:blocks], MPI.BYTE],
            )
        )

    def gather(self, value: Any) -> list[Any]:
        """What each rank has for `value`. WorldError if a rank has left."""
        own = pickle.dumps(value)
        counts = np.empty(self.comm.size, np.int64)
        self._finish(self.comm.Iallgather(np.array([len(own)], np.int64), counts))
        every = bytearray(int(counts.sum()))
        self._finish(self.comm.Iallgatherv([own, MPI.BYTE], [every, counts.tolist(), MPI.BYTE]))
        ends = np.cumsum(counts).tolist()
        return [pickle.loads(every[end - count : end]) for end, count in zip(ends, counts)]  # noqa: B905

    def _finish(self, request: MPI.Request) -> None:
        """Waits for a collective; WorldError if a rank has left, which would never come."""
        begun = time.monotonic()
        look_at, leave_at = begun + _LOOK, 0.0
        while not request.Test():
            now = time.monotonic()
            if now - begun < _SPIN:
                os.sched_yield()  # sleep(0) takes 50 us, the slack of timers
            else:
                time.sleep(_NAP)
            if now < look_at:
                continue
            look_at = now + _LOOK
            why = self.departures.reason()
            leave_at = leave_at or (now + _PARTING if why else 0.0)
            if why and now > leave_at:
                self.failed = True
                _abandoned.append(request)
                raise WorldError(f"{why}. The training cannot go on without it.")


def _bytes(address: int, size: int) -> _Bytes:
    """The memory at an address; nothing is copied."""
    if not size:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, np.uint8)


def _check(code: int) -> None:
    if code:
        raise lightgbm.basic.LightGBMError(lightgbm.basic._LIB.LGBM_GetLastError().decode())


_network: _Network | None = None
_abandoned: list[MPI.Request] = []  # MPI may still use their memory
_thread = threading.local()


def init() -> None:
    """Join LightGBM's ranks; collective, and needed at most once.

    `Dataset`, `train` and the estimators do it by themselves.
    """
    global _network
    if MPI.COMM_WORLD.size == 1:
        return
    if survivors.is_elastic():
        raise WorldError(
            "LightGBM cannot train over the ranks of an elastic run: its C++ code cannot be left "
            "in the midst of a collective, so it could not go on when a rank is lost. Leave out "
            "--elastic; with --retries a run that lost a rank starts again."
        )
    if _network is None:
        _network = _Network()
    if _network.failed:
        raise WorldError(
            "An error ended a training on some ranks only. To train together again, call "
            "finalize() and then init() on all ranks."
        )
    if not getattr(_thread, "is_up", False):
        _network.begin()
        _thread.is_up = True


def finalize() -> None:
    """Take the network away from LightGBM; later training uses this rank's rows only."""
    global _network
    if _network is not None and _network.failed:
        _network = None
    if getattr(_thread, "is_up", False):
        _check(lightgbm.basic._LIB.LGBM_NetworkFree())
        _thread.is_up = False


def is_initialized() -> bool:
    """True where LightGBM has the network of the run."""
    return bool(getattr(_thread, "is_up", False))


def rank() -> int:
    """This process's rank, 0 … size() - 1."""
    return MPI.COMM_WORLD.rank


def size() -> int:
    """How many ranks train together."""
    return MPI.COMM_WORLD.size


def gather(value: Any) -> list[Any]:
    """What each rank has for `value`, on all ranks."""
    return [value] if _network is None else _network.gather(value)


@contextmanager
def leaving_together() -> Iterator[None]:
    """An exception on some ranks only ends the training on all of them, within seconds.

    The others raise a WorldError; within LightGBM's code, which cannot be left, it ends the run.
    """
    try:
        yield
    except WorldError:
        raise
    except Exception as error:
        if _network is not None and not _network.departures.leave(error):
            _network.failed = True
        raise
