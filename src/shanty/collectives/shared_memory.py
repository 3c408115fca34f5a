"""Shared memory segments: each rank of a host writes to its own room, and all read all rooms.

Many tensors that are reduced through them take two passes over memory: one copy to the room, one
sum out of it. Through a buffer and MPI's allreduce it is four or more. MPI has such memory too
(MPI_Win_allocate_shared), but Open MPI may complain about one-sided communication, which the user
has not asked for, and a full /dev/shm ends a rank at its first write. Importing this starts MPI.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

from mpi4py import MPI

_FOLDER = Path("/dev/shm")  # memory, on Linux; elsewhere a file of the system's own choice


def share(comm: MPI.Intracomm, nbytes: int) -> list[memoryview] | None:
    """Return the rooms of all ranks, of `nbytes` each, a multiple of 64; None if memory is short,
    or some rank cannot see it. Collective; all ranks are on one host.
    """
    path = _made(comm.size * nbytes) if comm.rank == 0 else None
    path = comm.bcast(path)
    memory = _mapped(path) if path else None
    everywhere = comm.allreduce(memory is not None, MPI.LAND)
    if path and comm.rank == 0:
        path.unlink()  # all have it: now nothing can be left behind
    if memory is None or not everywhere:
        return None
    whole = memoryview(memory)
    return [whole[at : at + nbytes] for at in range(0, len(whole), nbytes)]


def _made(nbytes: int) -> Path | None:
    try:
        descriptor, name = tempfile.mkstemp(
            prefix="shanty-", dir=_FOLDER if _FOLDER.is_dir() else None
        )
    except OSError:
        return None
    path = Path(name)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk shows at the first write
                os.posix_fallocate(file.fileno(), 0, nbytes)
            else:
                file.truncate(nbytes)
    except OSError:
        path.unlink()
        return None
    return path


def _mapped(path: Path) -> mmap.mmap | None:
    try:
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)
    except OSError:
        return None
