"""`shanty rerun`: the same job once more."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shanty.carry.errors import NotFoundError
from shanty.cli.arguments import RunArgument
from shanty.cli.context import context


def rerun(
    run: RunArgument = "last",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Come back at once.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the ranks' output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Run a job again, with the same command, options and folder, as a new run."""
    from shanty.cli import session
    from shanty.launch.index import read_job

    here = context()
    found = here.runs.find(run)
    job = read_job(found)
    if job is None:
        raise NotFoundError(f"{found.job} is missing or damaged, so its job is not known")
    show = session.Show(quiet=quiet, as_json=as_json)
    sys.exit(session.start(here, job, show, dry_run=False, detach=detach))
