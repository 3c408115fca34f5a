"""`shanty experiments`: Gradient's command, with its flags, for runs on one's own machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import click

from shanty.client.context import context, note
from shanty.client.terminal.options import completed, json_option
from shanty.integrations.gradient import flags as gradient_flags
from shanty.integrations.gradient.flags import (
    MULTINODE,
    OWN,
    SINGLENODE,
    api_key_option,
    of_experiment,
    reference_of,
)
from shanty.integrations.gradient.metrics import metrics
from shanty.integrations.platforms.flags import flag_options
from shanty.integrations.platforms.options_file import FileCommand, options_file
from shanty.integrations.platforms.verbs import add_alias, add_maker, restart
from shanty.runtime.errors import NotFoundError, UsageError

_LISTED = 20  # experiments on a page of `list`, as on Gradient


class Experiments(click.Group):
    """Knows the older names of its verbs, too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command."""
        return super().get_command(ctx, {"createAndStart": "run"}.get(cmd_name, cmd_name))


@click.group(cls=Experiments)
def experiments() -> None:
    """Run experiments, by Gradient's command line."""


@experiments.group()
def create() -> None:
    """Create an experiment; it begins as soon as its machines are free."""


@experiments.group()
def run() -> None:
    """Create an experiment, and show its output to its end."""


# ---------------------------------------------------------------------------- making experiments


def _jobs() -> ModuleType:
    """Import what makes jobs: the other verbs do not need it."""
    from shanty.integrations.gradient import job

    return job


def _making(group: click.Group, kind: str, text: str) -> None:
    """Give `create` or `run` the verb for a kind of experiment."""
    flags, make_job, example = {
        "multinode": (
            MULTINODE,
            lambda *given: _jobs().multinode(*given),
            "--workerMachineType a --workerCount 2 --masterCommand ./x",
        ),
        "singlenode": (
            SINGLENODE,
            lambda *given: _jobs().singlenode(*given),
            '--machineType a --command "python x.py" --workspace .',
        ),
    }[kind]
    add_maker(
        group,
        kind,
        make_job,
        f"{text}\n\n\b\nExample:\n  shanty experiments {group.name} {kind} {example}",
        flags=flags,
        own=OWN,
        more=options_file,
        runs=group is run,
    )


_making(
    create,
    "multinode",
    "Create an MPI experiment on a master and workers.\n\n"
    "It begins as soon as its machines are free. The line runs on the master, and mpirun in it "
    "takes the ranks to all machines, by /generated/hostfile or any other way.",
)
_making(
    create,
    "singlenode",
    "Create an experiment on one machine.\n\nIt begins as soon as a machine is free.",
)
_making(run, "multinode", "Create one of MPI, and show its output to its end.")
_making(run, "singlenode", "Create one on one machine, and show its output to its end.")


# ------------------------------------------------------------------------- those that there are


@experiments.command("list", cls=FileCommand)
@click.option(
    "--projectId", "-p", "projects", multiple=True, metavar="ID",
    help="Only of that project (repeatable: of any of them).",
)  # fmt: skip
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", shell_complete=completed("tags"),
    help="Only with that tag (repeatable: with all of them).",
)  # fmt: skip
@click.option(
    "--limit", "-l", type=click.IntRange(1), default=_LISTED, metavar="N",
    help=f"How many [{_LISTED}].",
)  # fmt: skip
@click.option(
    "--offset", "-o", type=click.IntRange(0), default=0, metavar="N",
    help="How many newer ones to pass over [0].",
)  # fmt: skip
@api_key_option
@options_file
@json_option
def list_all(
    projects: tuple[str, ...], tags: tuple[str, ...], limit: int, offset: int, as_json: bool
) -> None:
    """List the experiments, the newest first.

    \b
    Examples:
      shanty experiments list
      shanty experiments list --tag night --limit 5
    """
    from shanty.client.terminal.table import ago, print_table

    here = context()
    wanted = {f"project:{each}" for each in projects}
    found = [
        entry
        for entry in reversed(here.runs.entries())
        if set(tags) <= set(entry.tags) and (not wanted or wanted & set(entry.tags))
    ]
    shown = found[offset : offset + limit]
    if as_json:
        for entry in shown:
            print(json.dumps(entry.to_json()))
        return
    rows, now = [], time.time()
    for entry in shown:
        machines = ""
        with suppress(NotFoundError):  # its file is damaged
            job = here.job_of(here.runs.directory(entry.id))
            machines = ",".join(f"{name}:{count}" for name, count in job.machines)
        when = ago(max(0.0, now - entry.status.created)) + " ago"
        state, label = entry.status.state.value, entry.name or ""
        rows.append((label, entry.id, state, machines, ",".join(entry.tags), when))
    if rows:
        print_table(("NAME", "ID", "STATUS", "MACHINES", "TAGS", "CREATED"), rows)
    if len(found) > offset + limit:
        note(f"{len(found) - offset - limit} more: --offset {offset + limit}")
    elif not rows:
        print("no experiments")


for _verb, _line, _text in (
    ("details", "show", "Show one experiment: how it stands, where its files are."),
    ("stop", "stop", "Stop an experiment: SIGTERM to the ranks, then SIGKILL."),
    ("delete", "rm", "Delete an experiment that has ended, its logs and its artifacts."),
):
    add_alias(
        experiments,
        _verb,
        _line,
        f"{_text}\n\n\b\nExample:\n  shanty experiments {_verb} --id night",
        which=of_experiment,
        reference_of=reference_of,
        cls=FileCommand,
    )


@experiments.command(cls=FileCommand)
@of_experiment
@click.option("--logs", "logs", is_flag=True, help="Show its output to its end.")
def start(run_id: str | None, reference: str | None, logs: bool) -> None:
    """Start an experiment that has ended again, as a new one.

    One that was just created has begun by itself.

    \b
    Example:
      shanty experiments start --id night
    """
    restart(reference_of(run_id, reference), logs=logs)


@experiments.command(cls=FileCommand)
@of_experiment
@click.option(
    "--line", type=click.IntRange(0), default=0, metavar="N", help="The first line to show [1]."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="How many lines [10000, all with --follow].",
)
@click.option(
    "--follow", is_flag=False, flag_value="true", default="false", metavar="[true|false]",
    help="Go on until it has ended.",
)  # fmt: skip
def logs(
    run_id: str | None, reference: str | None, line: int, limit: int | None, follow: str
) -> None:
    """Print the output of an experiment.

    \b
    Examples:
      shanty experiments logs --id night --follow
      shanty experiments logs --id night --line 100 --limit 20
    """
    from shanty.client.terminal.logs import Excerpt, print_logs

    goes_on = _truth(follow)
    if goes_on is None:
        reference, goes_on = reference or follow, True  # `--follow ID`
    most = limit if limit is not None else None if goes_on else 10_000
    here = context()
    found = here.runs.find(reference_of(run_id, reference))
    print_logs(here, found, follow=goes_on, excerpt=Excerpt(max(0, line - 1), most))


def _truth(word: str) -> bool | None:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return known.get(word.lower())


# ------------------------------------------------------------------------------------- tags


@experiments.group()
def tags() -> None:
    """Put tags on experiments, and take them off."""


def _tags(values: Mapping[str, Any]) -> tuple[str, ...]:
    from shanty.integrations.platforms.parts import tags_of

    found = tags_of(values["tags"], values["tags_comma"])
    if not found:
        raise UsageError("no tags are named", fix="name them: --tag TAG, or --tags TAG,TAG")
    return found


def _tag_options(command: Callable[..., Any]) -> Any:
    flags = [each for each in gradient_flags.SINGLENODE if each.param in ("tags", "tags_comma")]
    return flag_options(flags)(of_experiment(command))


@tags.command(cls=FileCommand)
@_tag_options
def add(run_id: str | None, reference: str | None, **values: Any) -> None:
    """Put tags on an experiment.

    \b
    Example:
      shanty experiments tags add --id night --tag good
    """
    _retag(run_id, reference, add=_tags(values))


@tags.command(cls=FileCommand)
@_tag_options
def remove(run_id: str | None, reference: str | None, **values: Any) -> None:
    """Take tags off an experiment.

    \b
    Example:
      shanty experiments tags remove --id night --tags good,better
    """
    _retag(run_id, reference, remove=_tags(values))


def _retag(run_id: str | None, reference: str | None, **change: tuple[str, ...]) -> None:
    from shanty.client.tags import retag

    here = context()
    found = here.runs.find(reference_of(run_id, reference))
    left = retag(here.runs, found, **change)
    note(f"experiment {found.id} has the tags {', '.join(left)}" if left else
         f"experiment {found.id} has no tags")  # fmt: skip


experiments.add_command(metrics)
