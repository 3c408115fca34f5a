"""The facts about hosts, and the needs of a run, for the checks; pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

from shanty.launch.content.content_store import tags_of
from shanty.launch.finding import Finding, Level
from shanty.launch.mpis import DEFAULT
from shanty.launch.transport.refusal import login_words
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.mpi.flavour import Footprint
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec, Raw

HERE = Host("")  # this machine
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a run."""

    ranks: Mapping[str, int] = field(default_factory=dict)  # on each host, by its name
    memory: int = 0  # bytes a rank
    gpus: int = 0  # a rank
    hosts: tuple[str, ...] = ()  # the names of all, the lead first
    flavour: str = ""  # the MPI's key in FLAVOURS
    tags: tuple[str, ...] = ()  # the platforms of its files if they have to be sent
    oversubscribe: bool = False  # more ranks than cores are allowed
    contained: bool = False  # the ranks run in containers, with another C library and /dev/shm

    @property
    def footprint(self) -> Footprint:
        """The resources that the MPI takes on a host; those of the default MPI if none is named."""
        return FLAVOURS.get(self.flavour, FLAVOURS[DEFAULT]).footprint


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts about one host that was reached: answers of verbs."""

    host: Host
    survey: Mapping[str, Any]
    health: Mapping[str, Any]  # empty in the quick check of a run
    client: RpcClient | None = None  # None for this machine
    clock_error: float | None = None  # seconds by which its clock is ahead; None if unknown
    clock_doubt: float = 0.0  # its uncertainty in seconds

    @property
    def name(self) -> str:
        """The user's name for the host; "" for this machine."""
        return self.host.name

    @property
    def asked(self) -> RpcClient:
        """The RPC client of another machine."""
        assert self.client is not None
        return self.client

    def finding(
        self, level: Level, code: str, what: str, *texts: str, fixable: bool = False
    ) -> Finding:
        """Makes a finding about this host; `texts` are its evidence, fix and command."""
        return Finding(code, level, self.name, what, *texts, fixable=fixable)

    error = partialmethod(finding, Level.ERROR)
    warning = partialmethod(finding, Level.WARNING)


def need_of(
    job: JobSpec,
    hosts: Sequence[Host],
    surveys: Mapping[str, Mapping[str, Any]],
    installation: Installation | None = None,
) -> Need:
    """Returns the needs of a job; its hosts are filled with ranks one after the other.

    For a user's own mpirun line only the given slots are known.
    """
    by_gpus = any(survey["gpus"] for survey in surveys.values())
    ranks: dict[str, int] = {}
    left = job.processes
    for host in hosts:
        survey = surveys.get(host.name)
        if survey is None or (host.slots is None and isinstance(job.command, Raw)):
            continue
        slots = host.slots
        if slots is None:
            slots = len(survey["gpus"]) if by_gpus else int(survey["cores"])
        most = job.ranks_per_host or slots
        ranks[host.name] = most if left is None else min(most, left)
        if left is not None:
            left -= ranks[host.name]
    if left and job.oversubscribe and ranks:
        share, more = divmod(left, len(ranks))
        for index, name in enumerate(ranks):
            ranks[name] += share + (index < more)
    gpus = job.gpus_per_rank if job.gpus_per_rank is not None else int(by_gpus)
    brought = installation is not None and installation.origin != "system" and hosts != [HERE]
    return Need(
        ranks,
        job.memory_per_rank or 0,
        gpus,
        tuple(host.name for host in hosts),
        installation.flavour if installation is not None else "",
        tags_of(installation) if brought and installation is not None else (),
        job.oversubscribe,
        job.image is not None,
    )


def command_on(host: Host, *words: str) -> str:
    """Returns a command to paste here that runs `words` on the host."""
    line = shlex.join(words)
    return f"ssh {login_words(host)} {shlex.quote(line)}" if host.name else line


def amount(size: int) -> str:
    """Returns bytes as text: 512 KiB, 1.5 GiB."""
    for unit, factor in _UNITS:
        if size >= factor:
            number = size / factor
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{size / 1024:.0f} KiB"
