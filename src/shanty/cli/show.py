"""`shanty show`: all that is known of one run."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shanty.client.command_line import one_line, words_of
from shanty.client.context import context
from shanty.client.terminal.options import json_option, run_argument
from shanty.client.terminal.table import ago, left_text, progress_text
from shanty.runtime.counted import counted
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import State, Status

if TYPE_CHECKING:
    from shanty.client.report import AttemptReport, RunReport

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
    from shanty.client.report import describe_run
    from shanty.client.stalls import report as described

    runs = context().runs
    found = runs.find(run)
    (entry,) = runs.read([found])
    report = describe_run(found, entry)
    if as_json:
        more = {
            "path": str(found.path),
            "options": report.options,
            "hosts": [
                {"name": each.name, "slots": each.slots, "ranks": each.meant}
                for each in report.hosts
                if each.planned
            ],
            "attempts": [asdict(each) for each in report.attempts],
            "files": _files(found, entry.status),
            "stalls": report.stalls,
            "progress": report.progress,
            "plan": read_json(found.plan) or {},
        }
        print(json.dumps({**entry.to_json(), **more}))
        return
    status = entry.status
    rows = [
        ("run", entry.id + (f"  ({entry.name})" if entry.name else "")),
        ("tags", ", ".join(entry.tags)),
        ("command", one_line(report.job) if report.job else ""),
        ("options", _typed(report.options)),
        ("in", entry.workspace),
        ("state", status.state.value),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
        ("ranks", _ranks(status)),
        ("spares", str(status.spares or "")),
        *(("lost" if at == 0 else "", text) for at, text in enumerate(status.lost)),
        *(("returned" if at == 0 else "", text) for at, text in enumerate(status.returned)),
        ("stalled", _stalled(status)),
        ("alone", status.alone.what if status.alone else ""),
        ("not finite", status.not_finite),
        ("network", status.network),
        ("doing", status.activity),
        ("waits", status.reason if status.state is State.PENDING else ""),
        ("trouble", status.trouble),
        ("started", _date(status.created)),
        ("took", ago(status.took())),
        ("progress", progress_text(found)),
        ("hosts", _hosts_text(report)),
        *(("attempt" if at == 0 else "", text) for at, text in enumerate(_told(report.attempts))),
        ("mpi", report.environment.get("mpi", "")),
        ("network", report.environment.get("network", "")),
        ("python", report.environment.get("python", "")),
        ("folder", str(found.path)),
        *_file_rows(_files(found, status)),
    ]
    for label, value in rows:
        if value:
            print(f"{label:<10} {value}")
    stalls = report.stalls[-1:]
    for stall in stalls:
        print(f"\n{described(stall)}")
    if status.failure and status.failure.what not in [stall["what"] for stall in stalls]:
        print(f"\n{status.failure.what}")
        for label, value in (("why", status.failure.why), ("fix", status.failure.fix)):
            if value:
                print(f"  {label}: {value}")
        if status.failure.lines:
            print(f"\nlast lines ({status.failure.log}):")
            print(*("  " + line for line in status.failure.lines), sep="\n")


def _typed(given: Mapping[str, Any]) -> str:
    """Write options as one would type them; of variables the names, for values may be secret."""
    names = {"env": list(given["env"])} if "env" in given else {}
    return shlex.join(words_of({**given, **names}, shown=True))


def _date(seconds: float) -> str:
    """Write a time as a date; "" for a time that no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return ""


def _hosts_text(report: RunReport) -> str:
    known = [each for each in report.hosts if each.planned]
    texts = [
        each.name + (f" ({counted(each.meant, 'rank')})" if each.meant is not None else "")
        for each in known[:_MOST_HOSTS]
    ]
    more = len(known) - _MOST_HOSTS
    return ", ".join(texts) + (f", {more} more" * (more > 0))


def _told(attempts: Sequence[AttemptReport]) -> list[str]:
    return [
        f"{each.number} on {', '.join(each.hosts)}, since "
        f"{(each.failure or {}).get('what', 'the one before failed')}"
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
    if status.lost:
        return text
    return f"{text}, {status.joined} joined in one MPI world" if status.joined else text


def _stalled(status: Status) -> str:
    """Say for how long no rank has made progress, while the run is on."""
    if status.stalled is None:
        return ""
    return f"for {ago(max(0.0, time.time() - status.stalled))}"
