"""Holds the results of measuring networks and of choosing among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shanty.launch.finding import Finding
from shanty.launch.network.topology import Network, Rail, Route

Pair = tuple[str, str]  # from one host to another one, by name
_CROWDED = 0.5  # seconds for the bytes of some pair from which on others may have been held up
_HELD_UP = ("large-lost", "large-lost-back", "silent")


@dataclass(frozen=True, slots=True)
class Contact:
    """The result of trying to reach one host from another one, as the verb `net-probe` tells."""

    kind: str
    text: str = ""
    via: str = ""
    seconds: float = 0.0  # of the bytes, there and back

    @property
    def ok(self) -> bool:
        """True when connections and data pass."""
        return self.kind == "ok"

    @property
    def crowded(self) -> bool:
        """True when there were more packets than the wire could take, or it loses them anyhow."""
        return self.kind in _HELD_UP or self.seconds > _CROWDED


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed from one host to another: `rate` in bytes/s, `latency` in seconds, one way."""

    rate: float
    latency: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of `networks` between `hosts`; the mappings are by network's name."""

    hosts: tuple[str, ...]
    networks: tuple[Network, ...]
    contacts: Mapping[str, Mapping[Pair, Contact]] = field(default_factory=dict)
    paces: Mapping[str, Mapping[Pair, Pace]] = field(default_factory=dict)
    # the rates of networks that were used at the same time, in the order of their names
    together: Mapping[tuple[str, ...], Mapping[Pair, tuple[float, ...]]] = field(
        default_factory=dict
    )
    whole: bool = False  # `measure_all` has found it

    def joins(self, network: Network) -> bool:
        """True when every pair of hosts that was tried could talk over the network."""
        tried = set(network.tried) == set(self.hosts) and self.contacts.get(network.name)
        return bool(tried) and not self.failed(network)

    def failed(self, network: Network) -> dict[Pair, Contact]:
        """Returns the pairs that could not talk over the network."""
        contacts = self.contacts.get(network.name, {})
        return {pair: one for pair, one in contacts.items() if not one.ok}

    def serving(self) -> list[Network]:
        """Returns the networks that a run may take: they join all hosts over their own cables."""
        joining = [network for network in self.networks if self.joins(network)]
        # not every MPI can use IPv6
        family = [network for network in joining if network.version == 4] or joining
        found: dict[frozenset[tuple[str, str]], Network] = {}
        for network in family:
            found.setdefault(network.wires, network)
        return list(found.values())

    def by_ssh(self, network: Network) -> bool:
        """True for a network that goes over the cables that ssh takes."""
        return any(other.ssh and other.wires == network.wires for other in self.networks)

    def rate(self, name: str) -> float:
        """Returns the rate of the slowest pair: a ring goes as fast as that. 0 where unmeasured."""
        return min((pace.rate for pace in self.paces.get(name, {}).values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one network. `kind` is one of

    "chosen"; "joins", it could be taken; "slow", it joins and another one is faster; "partial",
    not all hosts have it; "dead", an end carries nothing, or nobody reaches anybody; "isolated",
    the same address on several hosts; "blocked", "half-open" (one direction only), "black-hole"
    (large packets vanish). `text` says it in words.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The route that a run takes, and what is wrong."""

    route: Route
    findings: tuple[Finding, ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by the network's name
    joining: tuple[Rail, ...] = ()  # all networks that joined all hosts
    age: float | None = None  # seconds since they were measured; None where that was now
    seconds: float = 0.0  # that the choice took
