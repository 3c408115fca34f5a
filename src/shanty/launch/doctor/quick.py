"""Checks the hosts of every run by their own surveys, without another question."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.doctor import hosts, pairs
from shanty.launch.doctor.codes import without_consequences
from shanty.launch.doctor.facts import Seen, need_of
from shanty.launch.finding import Finding, Level, tell
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec

_LATER = ("same-host",)  # which a run itself refuses, with its own message


def ask(client: RpcClient) -> Seen:
    """Asks a host for its survey, and measures by how much its clock is off."""
    before = time.time()
    survey = client.ask("survey").values
    after = time.time()
    # Its clock was read some time between: so all of that is doubt.
    ahead, doubt = hosts.clock(before, after, {"time": survey["time"], "took": 0.0})
    return Seen(client.host, survey, {}, client, ahead, doubt)


def look(
    job: JobSpec, seen: Sequence[Seen], installation: Installation, warn: Callable[[str], None]
) -> None:
    """Passes what may trouble a run to `warn`; FoundError for what would keep it from working."""
    surveys = {one.name: one.survey for one in seen}
    need = need_of(job, [one.host for one in seen], surveys, installation)
    found = [each for one in seen for each in hosts.of_host(one, need)]
    found = without_consequences([*found, *pairs.of_hosts(seen)])
    tell([_as_asked(each, job) for each in found if each.code not in _LATER], warn)


def _as_asked(finding: Finding, job: JobSpec) -> Finding:
    """Returns a warning where a run that asked for no GPUs has too few of them."""
    if finding.code == "gpus-short" and job.gpus_per_rank is None:
        return replace(finding, level=Level.WARNING)
    return finding
