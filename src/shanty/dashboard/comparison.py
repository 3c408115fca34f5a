"""Puts runs side by side: their options, variables and arguments, and their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shanty.client.plain import plain, text
from shanty.dashboard.detail import shown_job
from shanty.dashboard.metrics import RunMetrics
from shanty.dashboard.models import Comparison, MetricOfRuns, Parameter, Summary
from shanty.launch.index import read_job
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Program

_USUAL = JobSpec(Program(("true",))).to_json()
_BY_THEMSELVES = ("command", "env", "name", "tags")


def comparison(
    summaries: list[Summary], runs: Sequence[RunDir], metrics: Sequence[RunMetrics]
) -> Comparison:
    """Compare runs; a parameter that a run has not is null there."""
    columns = [_parameters(run) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    parameters = []
    for name in names:
        values = [column.get(name) for column in columns]
        differs = any(value != values[0] for value in values)
        parameters.append(Parameter(name=name, values=values, differs=differs))
    found = dict.fromkeys(name for each in metrics for name in each.names())
    return Comparison(
        runs=summaries,
        parameters=parameters,
        metrics=[
            MetricOfRuns(
                name=name,
                last=[each.last.get(name) for each in metrics],
                best_min=[each.least.get(name) for each in metrics],
                best_max=[each.greatest.get(name) for each in metrics],
            )
            for name in found
        ],
    )


def _parameters(run: RunDir) -> dict[str, Any]:
    job = read_job(run)
    values = plain(shown_job(job))
    if job is None:
        return {}
    found: dict[str, Any] = {}
    words = [text(word) for word in job.words()]
    if words:
        found["command"] = words[0] if words[0] != "-m" else " ".join(words[:2])
        found.update(_arguments(words[1:] if words[0] != "-m" else words[2:]))
    for name, value in values.items():
        if name not in _BY_THEMSELVES and value != _USUAL.get(name):
            found[name] = value
    found.update({f"${name}": value for name, value in values["env"].items()})
    return found


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return options by their names (`--lr 0.1`, `--lr=0.1`), other words by their places."""
    found: dict[str, Any] = {}
    place, at = 1, 0
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "--":
            found[f"argument {place}"] = word
            place += 1
        elif equals:
            found[name] = value
        elif at < len(words) and not words[at].startswith("--"):
            found[word] = words[at]
            at += 1
        else:
            found[word] = True
    return found
