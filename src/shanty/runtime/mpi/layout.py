"""Describes where the ranks of a run go, in no MPI's dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class HostSlots:
    """One host of a run and how many ranks it may hold."""

    name: str
    slots: int


@dataclass(frozen=True)
class Layout:
    """The ranks of a run and the hosts that they go to."""

    hosts: Tuple[HostSlots, ...]
    ranks: Optional[int]  # None when the user's own launcher line says how many
    ranks_per_host: Optional[int]
    cpus_per_rank: Optional[int]  # the cores that each rank is bound to; None for no binding
    oversubscribe: bool
    cores: int  # the smallest number of usable cores of any host
    hostfile: str  # the path of the run's host file on the lead host
    tcp_only: bool = False  # no host is known to have a faster network than TCP's
    networks: Tuple[str, ...] = ()  # as 10.0.0.0/24: the best, or all that are routed; () for any
    elastic: bool = False  # the ranks go on when some are lost
    interface: str = ""  # the name of the network's interface where all hosts have the same

    @property
    def by_ipv6(self) -> bool:
        """True when the networks are of IPv6."""
        return any(":" in network for network in self.networks)

    @property
    def slots(self) -> int:
        """Returns how many ranks all hosts together may hold."""
        return sum(host.slots for host in self.hosts)

    @property
    def local_only(self) -> bool:
        """True when all ranks are on one host, so that shared memory is all they need."""
        return len([host for host in self.hosts if host.slots > 0]) <= 1

    @property
    def shares_cores(self) -> bool:
        """True when a busy-waiting rank would take its core from another one."""
        ranks = self.ranks if self.ranks is not None else self.slots
        hosts = max(1, len([host for host in self.hosts if host.slots > 0]))
        return self.oversubscribe or -(-ranks // hosts) * (self.cpus_per_rank or 1) >= self.cores
