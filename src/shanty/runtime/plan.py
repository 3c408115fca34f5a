"""The plan of a run: all that its agents read, as `plan.json` keeps it.

A `Plan` belongs to the run; its `Attempt` to the hosts that the run has now. Named tuples, since
the ranks wait for the agent that loads them, and `dataclasses` takes 10 ms to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, Optional, Set, Tuple

from shanty.runtime.record import Record
from shanty.runtime.rundir import RunDir, read_json

if TYPE_CHECKING:
    from shanty.runtime.mpi.installation import Installation
    from shanty.runtime.mpi.layout import Layout


class Environment(Record):
    """The variables of what starts on a host.

    `default` counts where the host's user has set nothing, `ranks` likewise, but for ranks only;
    `own` counts in any case; the paths in `first` (joined by ":") come before the host's own.
    """

    default: Dict[str, str] = {}  # noqa: RUF012  never changed
    ranks: Dict[str, str] = {}  # noqa: RUF012
    own: Dict[str, str] = {}  # noqa: RUF012
    first: Dict[str, str] = {}  # noqa: RUF012


class Node(Record):
    """A host of an attempt, with what was prepared there. The first one is the lead host.

    `name` is what its user calls it, `names` are all that it may be called; `address` is by what
    the others reach it. `cores` are those that it has for itself, `limit` says why these are not
    all of the machine's; `gpus` is true where its slots are its GPUs. `python` runs the ranks'
    scripts, `agent_python` the agents; `package` is the folder with shanty's code, `mpi4py` that
    of an mpi4py for Pythons which lack it. `connection` is how the controller gets there.
    `segments` is the folder for the run's shared memory, "" where there is none. `fabric` is
    false where the host is known to have no network faster than TCP's. `interfaces` are those
    that the run takes, the best first: name and address each.

    Where the run has a container on the host, that is `container`; all other paths are inside of
    it, and `host_python` is the Python outside.
    """

    number: int
    name: str
    address: str
    slots: int
    cores: int
    run_dir: str
    workdir: str
    python: str
    agent_python: str
    package: str
    mpi: Dict[str, str]
    names: Tuple[str, ...] = ()
    connection: Dict[str, Any] = {}  # noqa: RUF012  never changed
    search_path: str = ""
    mpi4py: str = ""
    segments: str = ""
    fabric: bool = True
    interfaces: Tuple[Tuple[str, str], ...] = ()
    environment: Environment = Environment()
    container: Dict[str, Any] = {}  # noqa: RUF012
    host_python: str = ""
    limit: str = ""
    gpus: bool = False

    @property
    def installation(self) -> Installation:
        """The MPI on this host."""
        from shanty.runtime.mpi.installation import Installation

        return Installation(**self.mpi)

    @property
    def rank_address(self) -> str:
        """Where others find the ranks of this host."""
        if self.interfaces:
            return self.interfaces[0][1]
        return "127.0.0.1" if self.address == "localhost" else self.address

    @property
    def boot(self) -> Tuple[str, ...]:
        """The start of the command line of any of shanty's programs on this host."""
        return (self.agent_python, "-I", "-S", f"{self.package}/shanty/runtime/boot.py")

    @property
    def host_boot(self) -> Tuple[str, ...]:
        """The same outside of the container, if there is one."""
        return (self.host_python or self.boot[0], *self.boot[1:])


class Limits(Record):
    """What bounds a run: seconds, but for counts and `log_limit`, the bytes of a rank's log."""

    log_limit: int
    grace: float
    start_timeout: float
    time_limit: Optional[float]
    on_stall: str
    stall_after: float
    retries: int = 0
    alone: str = "warn"
    elastic: Optional[int] = None
    spares: int = 0


class Leftovers(Record):
    """Patterns of the files that MPIs leave behind: in shared memory, and in /tmp."""

    shared_memory: Tuple[str, ...]
    temporary: Tuple[str, ...]


class Attempt(Record):
    """A run on the hosts that it has now.

    `argv` is the launcher's command line, `environment` has the variables of the launcher alone,
    and `shared` those that are the same on all hosts. `placement` is the number of ranks on each
    host, empty where the launcher decides; `first` is the index of rank 0's host. `network`
    describes the networks in use, for people.
    """

    nodes: Tuple[Node, ...]
    argv: Tuple[str, ...]
    layout_values: Dict[str, Any]
    environment: Dict[str, str]
    shared: Dict[str, str]
    placement: Dict[str, int]
    first: int = 0
    network: Dict[str, Any] = {}  # noqa: RUF012  never changed
    number: int = 1

    @property
    def layout(self) -> Layout:
        """Where the ranks go."""
        from shanty.runtime.mpi.layout import HostSlots, Layout

        hosts = tuple(HostSlots(**host) for host in self.layout_values["hosts"])
        networks = tuple(self.layout_values["networks"])
        return Layout(**{**self.layout_values, "hosts": hosts, "networks": networks})

    @property
    def ranks(self) -> Optional[int]:
        """How many ranks there are to be; None where the user's own line says it."""
        count: Optional[int] = self.layout_values["ranks"]
        return count


class Plan(Record):
    """A run: `raw` where the user's own line starts the launcher.

    `scratch` is the folder for temporary files, at one path on all hosts. `scripted` is true
    where ranks start through a script of their host, since its paths differ from the lead's.
    While the run `waits` for its hosts, the only node of its attempt is what all of them will be.
    """

    id: str
    created: float
    raw: bool
    limits: Limits
    leftovers: Leftovers
    scratch: str
    scripted: bool
    attempt: Attempt
    waits: bool = False

    @property
    def lead(self) -> Node:
        """The host whose agents read this plan: the lead host, or a worker in its own copy."""
        return self.attempt.nodes[0]

    @property
    def workers(self) -> Tuple[Node, ...]:
        """The hosts beside the lead host."""
        return self.attempt.nodes[1:]

    @property
    def ranks(self) -> Optional[int]:
        """How many processes the launcher starts; None where the user's own line says it."""
        return None if self.raw else self.attempt.ranks

    @property
    def trainers(self) -> Optional[int]:
        """How many of them are ranks, and not spares."""
        return None if self.ranks is None else self.ranks - self.limits.spares

    @property
    def may_try_again(self) -> bool:
        """True while there may be another attempt."""
        return self.attempt.number <= self.limits.retries

    def of_worker(self, node: Node) -> Plan:
        """The part of the plan that a worker needs."""
        own = self.attempt._replace(nodes=(node,), argv=(), environment={}, network={})
        return self._replace(raw=False, attempt=own)

    def to_json(self) -> Dict[str, Any]:
        """The plan as plain JSON."""
        nodes = [
            {**node._asdict(), "environment": node.environment._asdict()}
            for node in self.attempt.nodes
        ]
        return {
            **self._asdict(),
            "limits": self.limits._asdict(),
            "leftovers": self.leftovers._asdict(),
            "attempt": {**self.attempt._asdict(), "nodes": nodes},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote; KeyError or TypeError when it is damaged."""
        attempt = values["attempt"]
        nodes = tuple(
            Node(**{**node, "environment": Environment(**node["environment"])})
            for node in attempt["nodes"]
        )
        parts = {
            "limits": Limits(**values["limits"]),
            "leftovers": Leftovers(**values["leftovers"]),
            "attempt": Attempt(**{**attempt, "nodes": nodes}),
        }
        return cls(**{**values, **parts})


def namesakes(nodes: Iterable[Node]) -> Set[str]:
    """The hosts that have a host name in common with another one, as cloned machines do."""
    found: Set[str] = set()
    owner: Dict[str, Node] = {}
    for node in nodes:
        for name in node.names:
            if name.replace(".", "").isdigit() or ":" in name:
                continue  # an address: that of a virtual network may be everywhere
            other = owner.setdefault(name, node)
            if other is not node:
                found |= {node.name, other.name}
    return found


def addresses_by_name(nodes: Iterable[Node]) -> Dict[str, Set[str]]:
    """The addresses of the hosts by each name that they may be called, in lower case."""
    found: Dict[str, Set[str]] = {}
    for node in nodes:
        for name in (node.name.rpartition("@")[2], node.address, *node.names):
            found.setdefault(name.lower().rstrip("."), set()).add(node.address)
    for node in nodes:  # what a user calls one host is not another one
        for name in (node.address, node.name.rpartition("@")[2]):
            found[name.lower().rstrip(".")] = {node.address}
    return found


def read_plan(run: RunDir) -> Optional[Plan]:
    """The plan of a run; None when it is missing or damaged."""
    values = read_json(run.plan)
    if values is None:
        return None
    try:
        return Plan.from_json(values)
    except (AttributeError, KeyError, TypeError):
        return None
