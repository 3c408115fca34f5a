"""`shanty rerun`: the same job once more."""

from __future__ import annotations

import sys

import click

from shanty.cli.arguments import detach_option, json_option, quiet_option, run_argument
from shanty.cli.context import context
from shanty.runtime.errors import NotFoundError


@click.command()
@run_argument
@detach_option
@quiet_option
@json_option
def rerun(run: str, detach: bool, quiet: bool, as_json: bool) -> None:
    """Run a job again, with the same command, options and folder, as a new run."""
    from shanty.cli.start import Show, start
    from shanty.launch.index import read_job

    here = context()
    found = here.runs.find(run)
    job = read_job(found)
    if job is None:
        raise NotFoundError(f"{found.job} is missing or damaged, so its job is not known")
    show = Show(quiet=quiet, as_json=as_json)
    sys.exit(start(here, job, show, dry_run=False, detach=detach))
