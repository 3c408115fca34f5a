"""A store of torch.distributed whose ranks find each other by MPI. Importing it starts no MPI."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import Store

if TYPE_CHECKING:
    from mpi4py import MPI


def serve(comm: MPI.Intracomm) -> Store:
    """A store that all ranks of the communicator reach; collective over them.

    Rank 0 serves it on a free port, at MASTER_ADDR where that is set and the rank is the world's
    first. Raises torch's DistNetworkError where a rank cannot reach it.
    """
    served, place = None, ("", 0)
    if comm.rank == 0:
        host = os.environ.get("MASTER_ADDR", "") if os.environ.get("RANK", "0") == "0" else ""
        host = host or _address()
        served = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        place = (host, served.port)
    host, port = comm.bcast(place, 0)
    return served or TCPStore(host, port, is_master=False)


def _address() -> str:
    """This host's name, as far as it resolves; else loopback, for ranks of one host."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name
