"""`shanty experiments metrics`: what a script logged, and how busy its hosts were."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from shanty.client.context import context, note
from shanty.client.options import seconds
from shanty.client.terminal.options import completed, json_option
from shanty.integrations.gradient.flags import of_experiment, reference_of
from shanty.integrations.platforms.options_file import FileCommand
from shanty.runtime.errors import UsageError

if TYPE_CHECKING:
    from shanty.client.measurements import Reader, Row

_POLL = 0.1  # seconds between two looks at a run that is watched
_BYTES = ("memoryUsage", "gpuMemoryFree", "gpuMemoryUsed")


@click.group()
def metrics() -> None:
    """Read what a script logged, and how busy its hosts were."""


def _of_metrics(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--interval", default="30s", metavar="TIME", help="One row for so long, of means [30s]."
    )(command)
    command = click.option(
        "--metric", "names", multiple=True, metavar="NAME", shell_complete=completed("metrics"),
        help="What to show (repeatable) [cpuPercentage and memoryUsage]; also what was logged.",
    )(command)  # fmt: skip
    return of_experiment(json_option(command))


_date = click.DateTime()


@metrics.command(cls=FileCommand)
@_of_metrics
@click.option("--start", type=_date, metavar="DATE", help="From then on, as 2026-11-25T21:00:00.")
@click.option("--end", type=_date, metavar="DATE", help="Up to then.")
def get(
    run_id: str | None,
    reference: str | None,
    names: tuple[str, ...],
    interval: str,
    as_json: bool,
    start: datetime | None,
    end: datetime | None,
) -> None:
    """Print the metrics of an experiment: means of intervals, for each host and each rank.

    \b
    Examples:
      shanty experiments metrics get --id night
      shanty experiments metrics get --id night --metric loss --interval 1s
    """
    reader = _reader(run_id, reference, names, interval)
    times = {name: each.timestamp() for name, each in (("start", start), ("end", end)) if each}
    rows = reader.read(whole=True, **times)
    _say_what_is_missing(reader, rows)
    _print(rows, reader.names, as_json=as_json, head=True)


@metrics.command(cls=FileCommand)
@_of_metrics
def stream(
    run_id: str | None, reference: str | None, names: tuple[str, ...], interval: str, as_json: bool
) -> None:
    """Print the metrics of an experiment while it goes on.

    \b
    Example:
      shanty experiments metrics stream --id night --metric loss --interval 5s
    """
    reader = _reader(run_id, reference, names, interval)
    here, head = context(), True
    while True:
        final = here.runs.status(reader.run).state.final
        rows = reader.read(whole=final)
        _print(rows, reader.names, as_json=as_json, head=head)
        head = head and not rows
        if final:
            if head:
                _say_what_is_missing(reader, rows)
            return
        time.sleep(_POLL)


def _reader(
    run_id: str | None, reference: str | None, names: tuple[str, ...], interval: str
) -> Reader:
    from shanty.client.measurements import USUAL, Reader, check_names

    check_names(names)
    length = seconds(interval)
    if length <= 0:
        raise UsageError("--interval must be more than 0", fix="write 1s, 30s or 5m")
    found = context().runs.find(reference_of(run_id, reference))
    return Reader(found, tuple(dict.fromkeys(names)) or USUAL, length)


def _say_what_is_missing(reader: Reader, rows: Sequence[Row]) -> None:
    from shanty.client.measurements import OF_HOSTS

    there = {name for row in rows for name in row.values}
    missing = [name for name in reader.names if name not in there]
    of_hosts = [name for name in missing if name in OF_HOSTS]
    logged = [name for name in missing if name not in OF_HOSTS]
    if of_hosts:
        why = "" if reader.run.resources.exists() else ": its hosts were not sampled"
        note(f"experiment {reader.run.id} has no {', '.join(of_hosts)} of that time{why}")
    if logged:
        note(f"experiment {reader.run.id} has logged no {', '.join(logged)} (see shanty.log)")


def _print(rows: Sequence[Row], names: Sequence[str], *, as_json: bool, head: bool) -> None:
    """Print rows in columns of a width that does not depend on them: more may come."""
    widths = [max(len(name), 10) for name in names]
    if head and rows and not as_json:
        cells = [name.rjust(width) for name, width in zip(names, widths, strict=True)]
        print("TIME".ljust(19), "OF".ljust(16), *cells, sep="  ")
    for row in rows:
        if as_json:
            print(json.dumps({"time": row.time, "of": row.whose, **row.values}), flush=True)
            continue
        cells = [
            _cell(name, row.values.get(name)).rjust(width)
            for name, width in zip(names, widths, strict=True)
        ]
        date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time))
        print(date, row.whose.ljust(16), *cells, sep="  ", flush=True)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in _BYTES:
        return f"{value / (1 << 20):.0f} MiB"
    return f"{value:.6g}"
