"""A store of torch.distributed whose ranks find each other by MPI. Importing it starts no MPI."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError, DistNetworkError
from torch.distributed.distributed_c10d import Store

if TYPE_CHECKING:
    from mpi4py import MPI


def serve(comm: MPI.Intracomm) -> Store:
    """A store that all ranks of the communicator reach; collective over them.

    Rank 0 serves it on a free port, at MASTER_ADDR where that is set and the rank is the world's
    first. Raises torch's DistNetworkError where a rank cannot reach it.
    """
    served, place, failure = None, ("", 0), ""
    if comm.rank == 0:
        host = os.environ.get("MASTER_ADDR", "") if os.environ.get("RANK", "0") == "0" else ""
        host = host or _address()
        try:
            served = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            place = (host, served.port)
        except DistError as error:  # the others must not wait for what will not come
            failure = str(error)
    (host, port), failure = comm.bcast((place, failure), 0)
    if failure:
        raise DistNetworkError(f"The group's first rank cannot serve a store: {failure}")
    return served or TCPStore(host, port, is_master=False)


def _address() -> str:
    """This host's address towards MASTER_ADDR; without that its name, as far as it resolves; else
    loopback, for ranks of one host.

    The name alone will not do: on many machines it means 127.0.1.1, there and elsewhere.
    """
    towards = os.environ.get("MASTER_ADDR", "")
    try:
        if not towards:
            socket.getaddrinfo(socket.gethostname(), None)
            return socket.gethostname()
        family, kind, *_, address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
