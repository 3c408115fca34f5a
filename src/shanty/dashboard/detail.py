"""Reads what a page of one run shows, from the run's directory alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
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
from shanty.dashboard.plain import number, plain, text, whole
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
    status, job, plan = entry.status, read_job(run), read_plan(run)
    events = _events(run)
    ranks = _ranks(RunDir(run.path, status.attempt), status, plan, events)
    pending = status.state is State.PENDING
    return Detail(
        **{**summary(entry, account).model_dump(), "ranks": ranks},
        status=plain(status.to_json()),
        job=plain(shown_job(job)),
        hosts=_hosts(plan, ranks),
        finding=_finding(status.failure or status.alone),
        waits=text(status.reason if pending else status.activity or status.trouble),
        progress=plain(read_json(run.progress)),
        attempts=run.attempts(),
        stalls=plain(read_lines(run.stalls)[-20:]),
        events=plain([_without_secrets(event) for event in events[-_EVENTS:]]),
        command_line=text(_line(job)),
        environment=_environment(plan),
        workspace=text(entry.workspace),
        code_version=_code_version(run, job),
        artifacts_count=_count(run.artifacts),
        metrics=metrics,
    )


def _line(job: JobSpec | None) -> str:
    try:
        return line(job) if job else ""
    except (TypeError, ValueError, AttributeError):  # of a damaged job
        return ""


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
    meant = min(whole(status.ranks) or 0, _MOST_RANKS)
    if plan is not None:
        meant = max(meant, min(whole(plan.ranks) or 0, _MOST_RANKS))
    first = whole(status.failure.rank) if status.failure else None
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
        host=text(host) if host else None,
        state="failed" if first else state,
        exit_code=whole(code),
        first_failure=first,
        log_size=size,
    )


def _hosts(plan: Plan | None, ranks: list[RankOfRun]) -> list[HostOfRun]:
    there: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.host is not None:
            there.setdefault(rank.host, []).append(rank.rank)
    found = []
    for node in plan.attempt.nodes if plan and not plan.waits else ():
        mine = there.pop(node.name, [])
        for name in node.names:
            mine += there.pop(name, [])
        found.append(
            HostOfRun(
                name=text(node.name),
                address=text(node.address),
                slots=whole(node.slots) or 0,
                ranks=sorted(mine),
            )
        )
    for name, mine in there.items():
        found.append(HostOfRun(name=name, address="", slots=len(mine), ranks=mine))
    return found


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
    return {key: text(value) for key, value in values.items() if value}


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
