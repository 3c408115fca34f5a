"""The doctor's part in every run: what the hosts' own surveys show, without another question."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.doctor import causes, hosts, needs, pairs
from shanty.launch.doctor.facts import Seen
from shanty.launch.finding import Finding, Level
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec

_LATER = ("same-host",)  # which a run itself refuses, in words of its own


def ask(client: RpcClient) -> Seen:
    """A host's survey, and by how much its clock is off."""
    before = time.time()
    survey = client.ask("survey").values
    after = time.time()
    # Its clock was read some time between: so all of that is doubt.
    ahead, doubt = hosts.clock(before, after, {"time": survey["time"], "took": 0.0})
    return Seen(client.host, survey, {}, client, ahead, doubt)


def look(
    job: JobSpec, seen: Sequence[Seen], installation: Installation, warn: Callable[[str], None]
) -> None:
    """Say what may trouble a run, by `warn`; FoundError for what would keep it from working."""
    surveys = {one.name: one.survey for one in seen}
    need = needs.of_job(job, [one.host for one in seen], surveys, installation)
    found = [each for one in seen for each in hosts.of_host(one, need)]
    found = causes.settle([*found, *pairs.of_hosts(seen)])
    found = [_as_asked(each, job) for each in found if each.code not in _LATER]
    tell(found, warn)


def tell(found: Sequence[Finding], warn: Callable[[str], None]) -> None:
    """Pass warnings on to `warn`; FoundError where there are errors."""
    errors = [each for each in found if each.level is Level.ERROR]
    if errors:
        raise refused(errors)
    for each in found:
        if each.level is Level.WARNING:
            warn(sentence(each))


def _as_asked(finding: Finding, job: JobSpec) -> Finding:
    """A run that asked for no GPUs may do without one for each rank."""
    if finding.code == "gpus-short" and job.gpus_per_rank is None:
        return replace(finding, level=Level.WARNING)
    return finding


class FoundError(PrepareError):
    """A run would not work, and all that the doctor has to say of it is in the error."""


def refused(errors: Sequence[Finding]) -> FoundError:
    """One error for findings that keep a run from working."""
    if len(errors) == 1:
        (one,) = errors
        return FoundError(f"{_named(one)} [{one.code}]", one.evidence, one.fix)
    indent = "\n       "
    return FoundError(
        f"{len(errors)} things keep this run from working",
        indent.join(f"{_named(one)} [{one.code}]" for one in errors),
        indent.join(dict.fromkeys(f"{one.host}: {one.fix}" for one in errors if one.fix)),
    )


def sentence(finding: Finding) -> str:
    """A finding in one line."""
    evidence = f" ({finding.evidence})" if finding.evidence else ""
    cure = f"; {finding.fix}" if finding.fix else ""
    return f"{_named(finding)}{evidence}{cure} [{finding.code}]"


def _named(finding: Finding) -> str:
    return f"{finding.host}: {finding.what}" if finding.host else finding.what
