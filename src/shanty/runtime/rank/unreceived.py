"""Says at the end of a rank which messages have come that it has not received."""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MATCH = "compare the numbers, sources and tags of its receives with those of the sends"
_ROOTS = "all ranks have to make the same collective calls, with the same root and counts"
# Open MPI's count of what has come, for each peer, that of collective calls included.
_QUEUED = b"pml_ob1_unexpected_msgq_length"
_SIZE = 2  # MPI_T_PVAR_CLASS_SIZE


def note(mpi: Any, rank: int) -> None:
    """Writes what has come on `mpi`.COMM_WORLD for `rank` to its stderr: none receives it now."""
    with contextlib.suppress(Exception):  # as where the world is broken, but this rank is well
        status = mpi.Status()
        if mpi.COMM_WORLD.Iprobe(mpi.ANY_SOURCE, mpi.ANY_TAG, status):
            of = f"rank {status.Get_source()} (tag {status.Get_tag()})"
            _write(f"rank {rank} ends without receiving a message of {of}: {MATCH}")
        elif sources := _queued(mpi):
            word = "rank" if len(sources) == 1 else "ranks"
            of = f"a collective call of {word} {', '.join(map(str, sources[:8]))}"
            _write(f"rank {rank} ends without receiving a message of {of}: {_ROOTS}")


def _write(text: str) -> None:
    os.write(2, f"shanty: {text}\n".encode())


def _queued(mpi: Any) -> list[int]:
    """Returns the ranks whose messages wait in Open MPI's queue; with other MPIs none.

    MPI_Iprobe does not see the messages of collective calls, but the tools' interface counts
    them (MPI 4.1, section 15.3.7). Open MPI 4 loads all of its components for it, for 0.2 s.
    """
    import ctypes

    version = mpi.Get_library_version()
    if "Open MPI" not in version or "Open MPI v4" in version:
        return []
    lib = ctypes.CDLL(mpi.__file__)
    index, count = ctypes.c_int(), ctypes.c_int()
    session, handle = ctypes.c_void_p(), ctypes.c_void_p()
    ref = ctypes.byref
    if lib.MPI_T_init_thread(0, ref(count)):
        return []
    if lib.MPI_T_pvar_get_index(_QUEUED, _SIZE, ref(index)):  # another component is at work
        return []
    world = ctypes.c_void_p(mpi._addressof(mpi.COMM_WORLD))
    if lib.MPI_T_pvar_session_create(ref(session)) or lib.MPI_T_pvar_handle_alloc(
        session, index, world, ref(handle), ref(count)
    ):
        return []
    queued = (ctypes.c_uint * count.value)()
    if lib.MPI_T_pvar_read(session, handle, queued):
        return []
    return [rank for rank, number in enumerate(queued) if number]
