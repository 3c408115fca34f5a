"""What a job would ask of each host; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shanty.launch.cluster.host import Host
from shanty.launch.cluster.mpi_provision import tags_of
from shanty.launch.doctor.facts import Need
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec, Raw

HERE = Host("")  # this machine


def of_job(
    job: JobSpec,
    hosts: Sequence[Host],
    surveys: Mapping[str, Mapping[str, Any]],
    installation: Installation | None = None,
) -> Need:
    """What the hosts are to hold, hosts being filled with ranks one after the other.

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
