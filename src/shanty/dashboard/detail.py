"""Reads what a page of one run shows, from the run's directory alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from shanty.dashboard.models import (
    CodeVersion,
    Detail,
    Finding,
    HostOfRun,
    RankOfRun,
    Summary,
)
from shanty.launch.command_line import line, looks_secret
from shanty.launch.index import Entry, read_job
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.rundir import RunDir, read_json, read_lines
from shanty.runtime.spec import Failure, JobSpec, State, Status

MASK = "••••••"  # in place of a value that looks secret
_EVENTS = 200  # that are shown
_MOST_FILES = 10_000  # that are counted
_MOST_RANKS = 100_000
_EVENTS_READ = 16 << 20  # bytes of the end of events.jsonl


def summary(entry: Entry, account: str) -> Summary:
    """Return a row of the table; a run without an owner is `account`'s."""
    status = entry.status
    return Summary(
        id=entry.id,
        name=entry.name,
        state=status.state.value,
        exit_code=status.exit_code,
        ranks=status.ranks,
        joined=status.joined,
        created=status.created,
        started=status.started,
        ended=status.ended,
        took=round(status.took(), 3),
        target=entry.target,
        on=entry.on or None,
        machine_type=entry.machine_type or None,
        tags=list(entry.tags),
        command=entry.command[0] if len(entry.command) == 1 else shlex.join(entry.command),
        owner=entry.owner or account,
        stalled=status.stalled,
        alone=status.alone.what if status.alone else None,
        reason=status.reason or None,
        failure=status.failure.what if status.failure else None,
        attempt=status.attempt,
        url=f"/runs/{entry.id}",
    )


def detail(entry: Entry, run: RunDir, account: str, metrics: list[str]) -> Detail:
    """Return all that is known of the run."""
    status, job, plan = entry.status, read_job(run), read_plan(run)
    events = _events(run)
    ranks = _ranks(RunDir(run.path, status.attempt), status, plan, events)
    pending = status.state is State.PENDING
    return Detail(
        **{**summary(entry, account).model_dump(), "ranks": ranks},
        status=status.to_json(),
        job=shown_job(job),
        hosts=_hosts(plan, ranks),
        finding=_finding(status.failure or status.alone),
        waits=status.reason if pending else status.activity or status.trouble,
        progress=read_json(run.progress),
        attempts=run.attempts(),
        stalls=read_lines(run.stalls)[-20:],
        events=[_without_secrets(event) for event in events[-_EVENTS:]],
        command_line=line(job) if job else "",
        environment=_environment(plan),
        workspace=entry.workspace,
        code_version=_code_version(run, job),
        artifacts_count=_count(run.artifacts),
        metrics=metrics,
    )


def shown_job(job: JobSpec | None) -> dict[str, Any]:
    """Return the job as it may be shown: where a value looks secret, a mask stands for it."""
    if job is None:
        return {}
    values = job.to_json()
    values["env"] = {k: MASK if looks_secret(k) else v for k, v in job.env.items()}
    if job.registry_password and not job.registry_password.startswith("env:"):
        values["registry_password"] = MASK
    return values


def _without_secrets(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("environ", "environment")}


def _events(run: RunDir) -> list[dict[str, Any]]:
    """Return the run's events; of very many the newest."""
    try:
        large = run.events.stat().st_size > _EVENTS_READ
    except OSError:
        return []
    if not large:
        return read_lines(run.events)
    import json

    with run.events.open("rb") as file:
        file.seek(-_EVENTS_READ, os.SEEK_END)
        lines = file.read().split(b"\n")[1:]
    found = []
    for each in lines:
        try:
            value = json.loads(each)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _ranks(
    run: RunDir, status: Status, plan: Plan | None, events: list[dict[str, Any]]
) -> list[RankOfRun]:
    """Return how each rank of the present attempt stands, by what was reported."""
    starts = [at for at, event in enumerate(events) if event.get("event") == "attempt"]
    known: dict[int, dict[str, Any]] = {}
    for event in events[starts[-1] if starts else 0 :]:
        report = event.get("report")
        kind = str(event.get("event", ""))
        if not kind.startswith("rank-") or not isinstance(report, dict):
            continue
        number = report.get("rank")
        if isinstance(number, int) and 0 <= number < _MOST_RANKS:
            _take(known.setdefault(number, {"state": "up"}), kind, report)
    meant = min(status.ranks or 0, _MOST_RANKS)
    if plan is not None:
        meant = max(meant, min(plan.ranks or 0, _MOST_RANKS))
    first = status.failure.rank if status.failure else None
    logs = run.rank_logs()
    return [
        _rank(number, known.get(number, {}), logs.get(number), number == first, status)
        for number in sorted({*range(meant), *known, *logs})
    ]


def _take(rank: dict[str, Any], kind: str, report: Mapping[str, Any]) -> None:
    rank["host"] = report.get("host") or rank.get("host")
    code = report.get("code")
    if kind == "rank-joined":
        rank["state"] = "joined"
    elif kind == "rank-failed":
        rank.update(state="failed", code=code)
    elif kind == "rank-exited" and rank["state"] != "failed":
        rank.update(state="failed" if code else "ended", code=code)


def _rank(
    number: int, known: Mapping[str, Any], log: Path | None, first: bool, status: Status
) -> RankOfRun:
    state: Literal["waiting", "up", "joined", "ended", "failed"] = known.get(
        "state", "up" if log is not None else "waiting"
    )
    if status.state.final and state in ("up", "joined"):
        state = "ended"  # nothing of a run outlives it
    size = 0
    if log is not None:
        try:
            size = log.stat().st_size
        except OSError:
            size = 0
    host, code = known.get("host"), known.get("code")
    return RankOfRun(
        rank=number,
        host=str(host) if host else None,
        state="failed" if first else state,
        exit_code=code if isinstance(code, int) else None,
        first_failure=first,
        log_size=size,
    )


def _hosts(plan: Plan | None, ranks: list[RankOfRun]) -> list[HostOfRun]:
    there: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.host:
            there.setdefault(rank.host, []).append(rank.rank)
    found = []
    for node in plan.attempt.nodes if plan and not plan.waits else ():
        mine = there.pop(node.name, [])
        for name in node.names:
            mine += there.pop(name, [])
        found.append(
            HostOfRun(name=node.name, address=node.address, slots=node.slots, ranks=sorted(mine))
        )
    for name, mine in there.items():
        found.append(HostOfRun(name=name, address="", slots=len(mine), ranks=mine))
    return found


def _finding(failure: Failure | None) -> Finding | None:
    if failure is None:
        return None
    values = asdict(failure)
    return Finding(
        **{key: values[key] for key in ("what", "why", "fix", "rank", "host")},
        lines=list(failure.lines),
    )


def _environment(plan: Plan | None) -> dict[str, str]:
    """Return what a run is made of: MPI, Python, network, container."""
    if plan is None:
        return {}
    lead = plan.lead
    container = lead.container
    values = {
        "mpi": " ".join(str(lead.mpi.get(key, "")) for key in ("flavour", "version")).strip(),
        "mpi_prefix": str(lead.mpi.get("prefix", "")),
        "python": lead.python,
        "network": str(plan.attempt.network.get("text", "")),
        "container": str(container.get("engine", "")) if container else "",
        "image": str(container.get("image", "")) if container else "",
    }
    return {key: value for key, value in values.items() if value}


def _code_version(run: RunDir, job: JobSpec | None) -> CodeVersion | None:
    """Return the commit of a run's code, where it came from git by its URL."""
    if job is None or job.source is None:
        return None
    for part in Path(job.workdir).parts:
        kind, _, rest = part.partition("-")
        commit = rest.rpartition("-")[2]
        if kind == "git" and len(commit) == 40:
            return CodeVersion(commit=commit, dirty=False)
    return None


def _count(folder: Path) -> int:
    """Count the files below a folder; links are not followed."""
    count, folders = 0, [str(folder)]
    while folders and count < _MOST_FILES:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        count += 1
        except OSError:
            continue
    return min(count, _MOST_FILES)
