"""Says what is known of a run: for `shanty show`, the dashboard and the SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shanty.client.command_line import line
from shanty.client.plain import number, text, whole
from shanty.launch.index import Entry, read_job
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.rundir import RunDir, json_objects, read_json, read_lines
from shanty.runtime.spec import JobSpec, Status

_SHOWN_BY_THEMSELVES = ("command", "workdir", "name", "tags")
_MOST_RANKS = 100_000
_EVENTS_READ = 16 << 20  # bytes of the end of events.jsonl


Standing = Literal["waiting", "up", "joined", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class RankState:
    """How one rank of the present attempt stands."""

    rank: int
    host: str | None
    state: Standing
    exit_code: int | None
    first_failure: bool
    log_size: int


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host of a run.

    `meant` is how many ranks the plan puts there, None where it leaves that to the launcher;
    `ranks` are those that have reported from there. `planned` is false for a host that only ranks
    have named.
    """

    name: str
    address: str
    slots: int | None
    meant: int | None
    ranks: tuple[int, ...]
    planned: bool


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """An attempt after the first one: on which hosts, and for what failure before."""

    number: int | None
    time: float | None
    hosts: list[str]
    failure: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class RunReport:
    """What is known of a run, by its directory.

    `attempts` are those after the first one, `attempt_numbers` all that have a folder. `options`
    are what was asked for beside the command. `environment` says which MPI, Python, network and
    container it has. `commit` is that of its code, where that came from git. `progress`, `stalls`
    and `events` are as they were written, the events of very many the newest.
    """

    entry: Entry
    job: JobSpec | None
    plan: Plan | None
    options: dict[str, Any]
    command_line: str
    hosts: list[HostReport]
    rank_states: list[RankState]
    attempts: list[AttemptReport]
    attempt_numbers: list[int]
    progress: dict[str, Any] | None
    stalls: list[dict[str, Any]]
    events: list[dict[str, Any]]
    environment: dict[str, str]
    commit: str | None


def describe_run(run: RunDir, entry: Entry) -> RunReport:
    """Read what is known of a run; damaged files are as good as none."""
    job, plan, events = read_job(run), read_plan(run), _events(run)
    ranks = _ranks(RunDir(run.path, entry.status.attempt), entry.status, plan, events)
    return RunReport(
        entry=entry,
        job=job,
        plan=plan,
        options=_options(job),
        command_line=_line(job),
        hosts=_hosts(plan, ranks),
        rank_states=ranks,
        attempts=_attempts(events),
        attempt_numbers=run.attempts(),
        progress=read_json(run.progress),
        stalls=read_lines(run.stalls),
        events=events,
        environment=_environment(plan),
        commit=_commit(job),
    )


def _options(job: JobSpec | None) -> dict[str, Any]:
    """Return what was asked for beside the command, typed or in shanty.toml."""
    if job is None:
        return {}
    return {name: value for name, value in job.given().items() if name not in _SHOWN_BY_THEMSELVES}


def _line(job: JobSpec | None) -> str:
    try:
        return line(job) if job else ""
    except (TypeError, ValueError, AttributeError):  # of a damaged job
        return ""


def _events(run: RunDir) -> list[dict[str, Any]]:
    """Return the run's events; of very many the newest."""
    try:
        large = run.events.stat().st_size > _EVENTS_READ
    except OSError:
        return []
    if not large:
        return read_lines(run.events)
    with run.events.open("rb") as file:
        file.seek(-_EVENTS_READ, os.SEEK_END)
        return list(json_objects(file.read().split(b"\n")[1:]))


def _ranks(
    run: RunDir, status: Status, plan: Plan | None, events: list[dict[str, Any]]
) -> list[RankState]:
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
) -> RankState:
    state: Standing = known.get("state", "up" if log is not None else "waiting")
    if status.state.final and state in ("up", "joined"):
        state = "ended"  # nothing of a run outlives it
    size = 0
    if log is not None:
        try:
            size = log.stat().st_size
        except OSError:
            size = 0
    host, code = known.get("host"), known.get("code")
    return RankState(
        rank=number,
        host=text(host) if host else None,
        state="failed" if first else state,
        exit_code=whole(code),
        first_failure=first,
        log_size=size,
    )


def _hosts(plan: Plan | None, ranks: Sequence[RankState]) -> list[HostReport]:
    there: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.host is not None:
            there.setdefault(rank.host, []).append(rank.rank)
    found = []
    for node in plan.attempt.nodes if plan is not None else ():
        mine: list[int] = []
        if plan is not None and not plan.waits:
            for name in (node.name, *node.names):
                mine += there.pop(name, [])
        meant = plan.attempt.placement.get(node.name) if plan is not None else None
        found.append(
            HostReport(
                text(node.name), text(node.address), whole(node.slots), whole(meant),
                tuple(sorted(mine)), planned=True,
            )
        )  # fmt: skip
    for name, mine in there.items():
        found.append(HostReport(name, "", len(mine), None, tuple(mine), planned=False))
    return found


def _attempts(events: Sequence[Mapping[str, Any]]) -> list[AttemptReport]:
    found = []
    for event in events:
        if event.get("event") == "attempt":
            hosts, failure = event.get("hosts"), event.get("failure")
            found.append(
                AttemptReport(
                    whole(event.get("number")),
                    number(event.get("time")),
                    [text(each) for each in hosts] if isinstance(hosts, list) else [],
                    failure if isinstance(failure, dict) else None,
                )
            )
    return found


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


def _commit(job: JobSpec | None) -> str | None:
    """Return the commit of a run's code, where it came from git by its URL."""
    if job is None or job.source is None:
        return None
    for part in Path(job.workdir).parts:
        kind, _, rest = part.partition("-")
        commit = rest.rpartition("-")[2]
        if kind == "git" and len(commit) == 40:
            return commit
    return None
