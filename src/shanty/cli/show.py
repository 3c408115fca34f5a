"""`shanty show`: all that is known of one run."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from shanty.cli.context import context
from shanty.cli.options import OPTIONS, json_option, run_argument
from shanty.cli.table import ago, left_text, one_line, progress_text
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir, read_json, read_lines
from shanty.runtime.spec import JobSpec, State, Status

_SHOWN_BY_THEMSELVES = ("command", "workdir", "name", "tags")
_MOST_HOSTS, _MOST_FILES = 16, 8  # that are shown, with the number of the others


@click.command()
@run_argument
@json_option
def show(run: str, as_json: bool) -> None:
    """Show one run: what it is, how it stands, where its files are.

    Options, hosts, attempts, why it failed and its last lines, logs and what it saved.

    \b
    Examples:
      shanty show
      shanty show night --json
    """
    from shanty.cli.stacks import report, stalls_of
    from shanty.launch.index import read_job
    from shanty.runtime.plan import read_plan

    runs = context().runs
    found = runs.find(run)
    (entry,) = runs.read([found])
    plan, job, attempts = read_plan(found), read_job(found), _attempts(found)
    if as_json:
        more = {
            "path": str(found.path),
            "options": _options(job),
            "hosts": _hosts(plan),
            "attempts": attempts,
            "files": _files(found, entry.status),
            "stalls": stalls_of(found),
            "progress": read_json(found.progress),
            "plan": read_json(found.plan) or {},
        }
        print(json.dumps({**entry.to_json(), **more}))
        return
    status = entry.status
    rows = [
        ("run", entry.id + (f"  ({entry.name})" if entry.name else "")),
        ("tags", ", ".join(entry.tags)),
        ("command", one_line(job) if job else ""),
        ("options", _typed(_options(job))),
        ("in", entry.workspace),
        ("state", status.state.value),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
        ("ranks", _ranks(status)),
        ("stalled", _stalled(status)),
        ("alone", status.alone.what if status.alone else ""),
        ("not finite", status.not_finite),
        ("doing", status.activity),
        ("waits", status.reason if status.state is State.PENDING else ""),
        ("trouble", status.trouble),
        ("started", _date(status.created)),
        ("took", ago(status.took())),
        ("progress", progress_text(found)),
        ("hosts", _hosts_text(plan)),
        *(("attempt" if at == 0 else "", text) for at, text in enumerate(_told(attempts))),
        ("mpi", f"{plan.lead.mpi['flavour']} {plan.lead.mpi['version']}" if plan else ""),
        ("network", plan.attempt.network.get("text", "") if plan else ""),
        ("python", plan.lead.python if plan else ""),
        ("folder", str(found.path)),
        *_file_rows(_files(found, status)),
    ]
    for label, value in rows:
        if value:
            print(f"{label:<10} {value}")
    stalls = stalls_of(found)[-1:]
    for stall in stalls:
        print(f"\n{report(stall)}")
    if status.failure and status.failure.what not in [stall["what"] for stall in stalls]:
        print(f"\n{status.failure.what}")
        for label, value in (("why", status.failure.why), ("fix", status.failure.fix)):
            if value:
                print(f"  {label}: {value}")
        if status.failure.lines:
            print(f"\nlast lines ({status.failure.log}):")
            print(*("  " + line for line in status.failure.lines), sep="\n")


def _options(job: JobSpec | None) -> dict[str, Any]:
    """Return what was asked for beside the command, typed or in shanty.toml."""
    if job is None:
        return {}
    plain = JobSpec(job.command)
    given = {each.name: getattr(job, each.name) for each in fields(JobSpec)}
    return {
        name: value
        for name, value in given.items()
        if name not in _SHOWN_BY_THEMSELVES and value != getattr(plain, name)
    }


def _typed(given: Mapping[str, Any]) -> str:
    """Write options as one would type them; of variables the names, for values may be secret."""
    words: list[str] = []
    for name, value in given.items():
        flag = OPTIONS[name].flags.split()[0]
        if value is True:
            words.append(flag)
        elif name == "env":
            words += [word for key in value for word in (flag, key)]
        elif name == "machines":
            words += [flag, ",".join(f"{kind}:{count}" for kind, count in value)]
        elif isinstance(value, (tuple, list)):
            for each in value:
                parts = filter(None, each) if isinstance(each, (tuple, list)) else (str(each),)
                words += [flag, ":".join(parts)]
        else:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words += [flag, text]
    return shlex.join(words)


def _hosts(plan: Plan | None) -> list[dict[str, Any]]:
    """Return the hosts of a plan, and how many ranks are meant for each of them."""
    if plan is None:
        return []
    placed = plan.attempt.placement
    return [
        {"name": each.name, "slots": each.slots, "ranks": placed.get(each.name)}
        for each in plan.attempt.nodes
    ]


def _date(seconds: float) -> str:
    """Write a time as a date; "" for one that no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return ""


def _hosts_text(plan: Plan | None) -> str:
    known = _hosts(plan)
    texts = [
        host["name"] + (f" ({host['ranks']} ranks)" if host["ranks"] is not None else "")
        for host in known[:_MOST_HOSTS]
    ]
    more = len(known) - _MOST_HOSTS
    return ", ".join(texts).replace("(1 ranks)", "(1 rank)") + (f", {more} more" * (more > 0))


def _attempts(run: RunDir) -> list[dict[str, Any]]:
    """Return the attempts after the first one: on which hosts, and for what failure before."""
    return [
        {key: event.get(key) for key in ("number", "time", "hosts", "failure")}
        for event in read_lines(run.events)
        if event.get("event") == "attempt"
    ]


def _told(attempts: list[dict[str, Any]]) -> list[str]:
    return [
        f"{each['number']} on {', '.join(each['hosts'] or [])}, since "
        f"{(each['failure'] or {}).get('what', 'the one before failed')}"
        for each in attempts
    ]


def _files(run: RunDir, status: Status) -> dict[str, Any]:
    """Return the paths of what the run has written."""
    logs = RunDir(run.path, status.attempt)
    paths = {"metrics": run.metrics, "artifacts": run.artifacts, "agent_log": run.agent_log}
    saved = [path for path in run.artifacts.rglob("*") if path.is_file()]
    return {
        "logs": str(logs.logs),
        "rank_logs": {rank: str(path) for rank, path in logs.rank_logs().items()},
        **{name: str(path) for name, path in paths.items() if path.exists()},
        "saved": [str(path.relative_to(run.artifacts)) for path in sorted(saved)],
        "left": read_json(run.left) or {},
    }


def _file_rows(files: Mapping[str, Any]) -> list[tuple[str, str]]:
    saved, count = files["saved"], len(files["rank_logs"])
    text = ", ".join(saved[:_MOST_FILES])
    text += f" and {len(saved) - _MOST_FILES} more" if len(saved) > _MOST_FILES else ""
    counted = f"{count} rank{'s' * (count != 1)}" if count else "no rank has written yet"
    return [
        ("logs", f"{files['logs']} ({counted})" if Path(files["logs"]).is_dir() else ""),
        ("metrics", files.get("metrics", "")),
        ("artifacts", f"{files['artifacts']} ({text})" if saved else ""),
        ("left", left_text(files["left"])),
    ]


def _ranks(status: Status) -> str:
    """Say how many ranks there were, and how many of them MPI itself showed in one world."""
    text = f"{status.up} of {status.ranks}" if status.ranks else str(status.up)
    return f"{text}, {status.joined} joined in one MPI world" if status.joined else text


def _stalled(status: Status) -> str:
    """Say for how long no rank has made progress, while the run is on."""
    if status.stalled is None:
        return ""
    return f"for {ago(max(0.0, time.time() - status.stalled))}"
