"""Declares how the verbs of `shanty experiments` are told which experiment is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shanty.cli.context import note
from shanty.cli.options import completed
from shanty.cli.options_file import options_file
from shanty.runtime.errors import UsageError


def _left_out(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value:
        note("left out: --apiKey (there is no account here)")


api_key_option = click.option(
    "--apiKey", "api_key", hidden=True, expose_value=False, callback=_left_out
)


def of_experiment(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb --id, or the id by itself, and the platform's flags without a meaning."""
    command = api_key_option(options_file(command))
    command = click.option(
        "--id", "run_id", metavar="ID", shell_complete=completed("runs"),
        help="Its id, the start of that, its name, or last.",
    )(command)  # fmt: skip
    return click.argument(
        "reference", metavar="[ID]", required=False, shell_complete=completed("runs")
    )(command)


def reference_of(run_id: str | None, reference: str | None) -> str:
    """Return which experiment is meant; UsageError where it was not said, or twice."""
    if run_id and reference and run_id != reference:
        raise UsageError(f"--id {run_id} and {reference} are two experiments", fix="name one")
    found = run_id or reference
    if not found:
        raise UsageError("which experiment?", fix="name it: --id ID, or last")
    return found
