"""`shanty horovodrun`: starts a line for Horovod's launcher as a run."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from shanty.client import jobs
from shanty.client.context import context, note
from shanty.runtime.errors import UsageError
from shanty.runtime.lines.horovodrun import parse
from shanty.runtime.localhost import all_here
from shanty.runtime.mpi.processes import OUTPUT_FILES
from shanty.runtime.spec import Raw


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    },
    add_help_option=False,
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]… COMMAND [ARGS]…")
def horovodrun(words: tuple[str, ...]) -> None:
    """Run a command as horovodrun would, with its options.

    \b
    Example:
      shanty horovodrun -np 4 -H a:2,b:2 python train.py
    """
    wanted = parse(words)
    here, folder = context(), Path.cwd()
    if wanted.asks:
        from shanty.launch import interpreter

        print(wanted.answer(interpreter.choose(None, folder, here.environ)))
        return
    if wanted.ssh:
        raise UsageError(
            f"{shlex.join(wanted.ssh)} of horovodrun has no counterpart here",
            "hosts are reached as ssh reaches them",
            "set Port and IdentityFile for them in ~/.ssh/config",
        )
    variables = dict(wanted.variables)
    if wanted.output:
        variables[OUTPUT_FILES] = os.path.abspath(wanted.output)  # noqa: PTH100
    local = not wanted.hostfile and all_here(filter(None, wanted.hosts.split(",")))
    job = jobs.job_typed(
        Raw(("mpirun", *wanted.mpirun_words())),
        folder,
        {
            "ranks": wanted.ranks,
            "oversubscribe": True if local else None,
            "on": wanted.hosts if wanted.hosts and not local else None,
            "hostfile": str(Path(wanted.hostfile).absolute()) if wanted.hostfile else None,
            "env": variables,
            "start_timeout": None if wanted.start_timeout is None else float(wanted.start_timeout),
        },
    )
    for text in wanted.notes:
        note(text)
    if wanted.verbose:
        note(shlex.join(job.words()))
    from shanty.client.terminal.display import Show
    from shanty.client.terminal.start import start

    sys.exit(start(here, job, Show()))
