"""What the doctor knows of hosts before it judges: facts in, findings out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shanty.launch.cluster.host import Host
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.mpis import DEFAULT
from shanty.runtime.mpi.footprint import FOOTPRINTS, Footprint


@dataclass(frozen=True, slots=True)
class Need:
    """What a run would ask of its hosts; nothing where nothing was said.

    `ranks` are those meant for each host, by its name; `memory` is in bytes a rank, `gpus` a rank.
    `hosts` are the names of all hosts, the lead first. `flavour` is the MPI's key in FLAVOURS,
    `tags` are the platform tags of its files where they are to be brought. `oversubscribe` says
    that more ranks than cores are meant.
    """

    ranks: Mapping[str, int] = field(default_factory=dict)
    memory: int = 0
    gpus: int = 0
    hosts: tuple[str, ...] = ()
    flavour: str = ""
    tags: tuple[str, ...] = ()
    oversubscribe: bool = False

    @property
    def footprint(self) -> Footprint:
        """What the MPI takes of a host; where none was named, that of the usual one."""
        return FOOTPRINTS.get(self.flavour, FOOTPRINTS[DEFAULT])


@dataclass(frozen=True, slots=True)
class Seen:
    """One host that was reached, and what it said of itself.

    `survey` is the answer of the verb `survey`. `health` is that of the verb `health`, empty in
    the quick check of a run, which asks nothing more. `clock_error` is by how many seconds the
    host's clock is ahead of this machine's, None where it was not measured, and
    `clock_doubt` the half of the time that the question took, by which it may be wrong.
    `RPC client` is None for this machine, which is asked without one.
    """

    host: Host
    survey: Mapping[str, Any]
    health: Mapping[str, Any]
    client: RpcClient | None = None
    clock_error: float | None = None
    clock_doubt: float = 0.0

    @property
    def name(self) -> str:
        """What the user calls the host; "" for this machine."""
        return self.host.name
