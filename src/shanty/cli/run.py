"""`shanty run`: start ranks and stay with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from shanty.carry.errors import UsageError
from shanty.cli import jobs
from shanty.cli.context import context


class RunCommand(TyperCommand):
    """Lets `-m NAME` end the options, as Python's own command line does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options up to the first word that is none, or `-m`."""
        takes_value = {
            name: not getattr(param, "is_flag", False)
            for param in self.params
            if param.param_type_name == "option"
            for name in param.opts
        }
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] != "--":
            if args[index] == "-m":
                args = [*args[:index], "--", *args[index:]]
                break
            index += 2 if takes_value.get(args[index]) else 1
        return super().parse_args(ctx, args)


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT|-m MODULE|PROGRAM|-- mpirun … [ARGS]…",
            help="What each rank runs, or your own MPI command, as words or as one string.",
        ),
    ],
    ranks: Annotated[
        int | None, typer.Option("-n", "-np", "--ranks", help="Ranks in all [one a core].")
    ] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option("--ranks-per-host", "--ppn", help="Ranks on each host.")
    ] = None,
    cpus_per_rank: Annotated[
        int | None,
        typer.Option("--cpus-per-rank", "-c", help="Cores to bind each rank to [no binding]."),
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Allow more ranks than cores.")
    ] = False,
    mpi: Annotated[
        str | None,
        typer.Option("--mpi", help="openmpi (default), openmpi4, mpich, intel, or a prefix."),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter or virtual environment.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("-e", "--env", metavar="KEY[=VALUE]", help="Set a variable for the ranks."),
    ] = None,
    env_file: Annotated[
        list[Path] | None, typer.Option("--env-file", help="A file of KEY=VALUE lines.")
    ] = None,
    workdir: Annotated[
        Path | None, typer.Option("-C", "--workdir", help="Where to run [here].")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", "-t", help="End the run then: 90s, 15m, 2h.")
    ] = None,
    start_timeout: Annotated[
        str | None, typer.Option("--start-timeout", help="How long ranks may take to start [60s].")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name to find the run by.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag (repeatable).")] = None,
    debug: Annotated[
        int | None, typer.Option("--debug", metavar="RANK", help="That rank's pdb, here.")
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Run the command once; it calls mpirun by itself."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run, and run nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Start it and come back at once.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Only the ranks' own output.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line on stdout.")
    ] = False,
) -> None:
    """Run a script, a module, a program or your own mpirun line, as ranks of one MPI world.

    Examples:
      shanty run -n 4 train.py --epochs 3
      shanty run -n 2 -m mypackage.train
      shanty run -- mpirun -np 2 -bind-to none python train.py
    """
    workspace = (workdir or Path.cwd()).absolute()
    if not workspace.is_dir():
        raise UsageError(f"there is no folder {workspace}", fix="check --workdir")
    given: dict[str, Any] = {
        "ranks": ranks,
        "ranks_per_host": ranks_per_host,
        "cpus_per_rank": cpus_per_rank,
        "oversubscribe": oversubscribe or None,
        "mpi": mpi,
        "python": python,
        "name": name,
        "env": jobs.environment(env or (), env_file or (), os.environ),
        "tags": tuple(tag or ()),
        "debug_rank": debug,
        "time_limit": jobs.seconds(time_limit) if time_limit else None,
        "start_timeout": jobs.seconds(start_timeout) if start_timeout else None,
    }
    job = jobs.make_job(jobs.make_command(command, workspace, raw=raw), workspace, given)
    from shanty.cli import session

    show = session.Show(quiet=quiet, as_json=as_json)
    sys.exit(session.start(context(), job, show, dry_run=dry_run, detach=detach))


run.__doc__ = (run.__doc__ or "").replace("Examples:\n", "\b\nExamples:\n")
