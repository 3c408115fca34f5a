"""Describes the networks that a run's traffic takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interface:
    """One host's end of a network; `address` is in numbers, `prefix` the network's part in bits."""

    name: str
    address: str
    prefix: int

    @property
    def network(self) -> str:
        """The network, as 10.0.0.0/24."""
        import ipaddress

        plain = self.address.partition("%")[0]
        return str(ipaddress.ip_interface(f"{plain}/{self.prefix}").network)


@dataclass(frozen=True, slots=True)
class Rail:
    """One network that joins all hosts of a run: the interface of each, by the host's name."""

    interfaces: Mapping[str, Interface]

    @property
    def networks(self) -> tuple[str, ...]:
        """The network, or networks where hosts are routed to each other."""
        return tuple(dict.fromkeys(each.network for each in self.interfaces.values()))


@dataclass(frozen=True, slots=True)
class Route:
    """The chosen networks: the best rail first; more than one where striping measured faster.

    Empty where there is nothing to choose, or no network joins all hosts. `reason` is for people.
    """

    rails: tuple[Rail, ...] = ()
    reason: str = ""
