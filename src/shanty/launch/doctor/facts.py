"""Describes hosts and what a run needs of them, as the checks take it; pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shanty.launch.cluster.content_store import tags_of
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.finding import Finding, Level
from shanty.launch.host import Host
from shanty.launch.mpis import DEFAULT
from shanty.runtime.mpi.footprint import FOOTPRINTS, Footprint
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec, Raw

HERE = Host("")  # this machine
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))


@dataclass(frozen=True, slots=True)
class Need:
    """What a run needs of its hosts.

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
        """The resources that the MPI takes of a host; the default MPI's where none is named."""
        return FOOTPRINTS.get(self.flavour, FOOTPRINTS[DEFAULT])


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts about one host that was reached.

    `survey` is the answer of the verb `survey`. `health` is that of the verb `health`, empty in
    the quick check of a run, which asks nothing more. `clock_error` is by how many seconds the
    host's clock is ahead of this machine's, None where it was not measured, and
    `clock_doubt` the half of the time that the question took, by which it may be wrong.
    `client` is None for this machine, which is asked without one.
    """

    host: Host
    survey: Mapping[str, Any]
    health: Mapping[str, Any]
    client: RpcClient | None = None
    clock_error: float | None = None
    clock_doubt: float = 0.0

    @property
    def name(self) -> str:
        """The name that the user gave the host; "" for this machine."""
        return self.host.name

    def finding(
        self, code: str, level: Level, what: str, *texts: str, fixable: bool = False
    ) -> Finding:
        """Makes a finding about this host; `texts` are its evidence, fix and command."""
        return Finding(code, level, self.name, what, *texts, fixable=fixable)

    def error(self, code: str, what: str, *texts: str, fixable: bool = False) -> Finding:
        """Makes an ERROR about this host."""
        return self.finding(code, Level.ERROR, what, *texts, fixable=fixable)

    def warning(self, code: str, what: str, *texts: str, fixable: bool = False) -> Finding:
        """Makes a WARNING about this host."""
        return self.finding(code, Level.WARNING, what, *texts, fixable=fixable)


def need_of(
    job: JobSpec,
    hosts: Sequence[Host],
    surveys: Mapping[str, Mapping[str, Any]],
    installation: Installation | None = None,
) -> Need:
    """Returns what a job needs of its hosts, which are filled with ranks one after the other.

    Of a user's own mpirun line nothing is known but the slots that were typed. `installation`
    is the MPI that the job takes, None where there is none.
    """
    by_gpus = any(survey["gpus"] for survey in surveys.values())
    ranks: dict[str, int] = {}
    left = job.ranks
    for host in hosts:
        survey = surveys.get(host.name)
        if survey is None:
            continue
        slots = host.slots
        if slots is None and isinstance(job.command, Raw):
            continue
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
        flavour=installation.flavour if installation is not None else "",
        tags=tags_of(installation) if brought and installation is not None else (),
        hosts=tuple(host.name for host in hosts),
        oversubscribe=job.oversubscribe,
    )


def command_on(host: Host, *words: str) -> str:
    """Returns a command to paste here that runs `words` on the host."""
    if not host.name:
        return shlex.join(words)
    options = ["-F", host.config] if host.config else []
    options += ["-p", str(host.port)] if host.port else []
    return shlex.join(["ssh", *options, host.login, shlex.join(words)])


def amount(size: int) -> str:
    """Returns bytes as text: 512 KiB, 1.5 GiB."""
    for unit, factor in _UNITS:
        if size >= factor:
            number = size / factor
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{size / 1024:.0f} KiB"
