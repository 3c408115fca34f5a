"""The next attempt of a run that has lost its lead host: a new run on the hosts that are left.

Launcher and controller are on the lead host, so no attempt of the same run can follow its loss. The
command that stays with the run starts another one, which goes on from the commits that the hosts
have in memory. `Planned.stand_by` has let the lead host know: if it was only cut off, it ends its
own part.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from shanty.client.context import note
from shanty.client.terminal.display import Show
from shanty.launch.follow import JsonPrinter
from shanty.launch.inventory import written
from shanty.launch.targets.base import Planned
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import CONTINUES
from shanty.runtime.spec import JobSpec


def next_job(plan: Planned, show: Show) -> JobSpec | None:
    """Return the job of the attempt that follows, and announce it; None where none does."""
    job, status = plan.job, read_status(plan.run)
    if status.failure is None or status.attempt > job.retries:
        return None
    limit = None if job.time_limit is None else job.time_limit - status.took()
    hosts = plan.hosts_left(status) if limit is None or limit > 0 else ()
    if not hosts:
        return None
    number, names = status.attempt + 1, ", ".join(host.name for host in hosts)
    reason = f"attempt {number} of {job.retries + 1} on {names}, as a new run: "
    reason += status.failure.what
    if show.as_json:
        JsonPrinter(sys.stdout.buffer).event("attempt", number=number, reason=reason)
    else:
        note(reason)
    return replace(
        job,
        on=",".join(map(written, hosts)),
        hostfile=None,
        retries=job.retries - status.attempt,
        time_limit=limit,
        env={**job.env, CONTINUES: plan.run.id},
    )
