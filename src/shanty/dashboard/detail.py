"""Reads what a page of one run shows, from the run's directory alone."""

from __future__ import annotations

import os
import shlex
from itertools import islice
from typing import Any

from shanty.client.command_line import looks_secret
from shanty.client.plain import number, plain, text, whole
from shanty.client.report import HostReport, RunReport, describe_run
from shanty.dashboard.models import CodeVersion, Detail, Finding, Summary
from shanty.launch.index import Entry
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure, JobSpec, State, Status

MASK = "••••••"  # in place of a value that looks secret
_EVENTS = 200  # that are shown
_SECRETS = ("environ", "environment")  # what events are shown without
_MOST_FILES = 10_000  # that are counted


def summary(entry: Entry, account: str) -> Summary:
    """Return a row of the table; a run without an owner is `account`'s."""
    status = entry.status
    command = [text(word) for word in entry.command]
    return Summary(
        id=entry.id,
        name=None if entry.name is None else text(entry.name),
        state=status.state.value,
        exit_code=whole(status.exit_code),
        ranks=whole(status.ranks),
        joined=whole(status.joined) or 0,
        created=number(status.created) or 0.0,
        started=number(status.started),
        ended=number(status.ended),
        took=_took(status),
        target=entry.target,
        on=text(entry.on) or None,
        machine_type=text(entry.machine_type) or None,
        tags=[text(tag) for tag in entry.tags],
        command=command[0] if len(command) == 1 else shlex.join(command),
        owner=text(entry.owner) or account,
        stalled=number(status.stalled),
        alone=text(status.alone.what) if status.alone else None,
        reason=text(status.reason) or None,
        failure=text(_cause(status.failure)) if status.failure else None,
        attempt=whole(status.attempt) or 1,
        url=f"/runs/{entry.id}",
    )


def _took(status: Status) -> float:
    try:
        return round(float(number(status.took()) or 0.0), 3)
    except (TypeError, OverflowError):  # of a damaged status
        return 0.0


def detail(entry: Entry, run: RunDir, account: str, metrics: list[str]) -> Detail:
    """Return all that is known of the run."""
    report = describe_run(run, entry)
    status = entry.status
    pending = status.state is State.PENDING
    files = (name for _, _, names in os.walk(run.artifacts) for name in names)
    return Detail(
        **{**summary(entry, account).model_dump(), "ranks": report.rank_states},
        status=plain(status.to_json()),
        job=plain(shown_job(report.job)),
        target_options=plain(report.job.options if report.job else {}),
        hosts=_hosts(report),
        finding=_finding(status.failure or status.alone),
        waits=text(status.reason if pending else status.activity or status.trouble),
        progress=plain(report.progress),
        attempts=report.attempt_numbers,
        stalls=plain(report.stalls[-20:]),
        events=plain(
            [
                {key: value for key, value in event.items() if key not in _SECRETS}
                for event in report.events[-_EVENTS:]
            ]
        ),
        command_line=text(report.command_line),
        environment=report.environment,
        workspace=text(entry.workspace),
        code_version=CodeVersion(commit=report.commit, dirty=False) if report.commit else None,
        artifacts_count=sum(1 for _ in islice(files, _MOST_FILES)),
        metrics=metrics,
    )


def _hosts(report: RunReport) -> list[HostReport]:
    """Return the hosts; not those of a plan that waits, which are not known to be the run's."""
    waits = report.plan is not None and report.plan.waits
    return [each for each in report.hosts if not (waits and each.planned)]


def shown_job(job: JobSpec | None) -> dict[str, Any]:
    """Return the job as it may be shown: where a value looks secret, a mask stands for it."""
    if job is None:
        return {}
    values = job.to_json()
    values |= values.pop("options")
    values["env"] = {k: MASK if looks_secret(k) else v for k, v in job.env.items()}
    if job.registry_password and not job.registry_password.startswith("env:"):
        values["registry_password"] = MASK
    return values


def _cause(failure: Failure) -> str:
    """Return a failure in one line: why first, which tells runs apart."""
    why = text(failure.why).partition("\n")[0]  # a damaged file may have anything
    return f"{why}: {failure.what}" if why else failure.what


def _finding(failure: Failure | None) -> Finding | None:
    if failure is None:
        return None
    return Finding(
        what=text(failure.what),
        why=text(failure.why),
        fix=text(failure.fix),
        rank=whole(failure.rank),
        host=None if failure.host is None else text(failure.host),
        lines=[text(each) for each in failure.lines],
    )
