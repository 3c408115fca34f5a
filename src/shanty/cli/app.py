"""The program `shanty`: its verbs, and what becomes of an error."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shanty.carry.errors import ShantyError
from shanty.cli import (
    logs,
    mpi,
    prune,
    ps,
    rerun,
    rm,
    run,
    show,
    stacks,
    stop,
)
from shanty.cli.context import show_error

app = typer.Typer(
    name="shanty",
    help="Distributed machine learning with MPI, without the set-up.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"shanty {version('shanty')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command("run", cls=run.RunCommand, context_settings={"allow_interspersed_args": False})(run.run)
app.command("rerun")(rerun.rerun)
app.command("ps")(ps.ps)
app.command("show")(show.show)
app.command("logs")(logs.logs)
app.command("stop")(stop.stop)
app.command("stacks")(stacks.stacks)
app.command("rm")(rm.rm)
app.command("prune")(prune.prune)
app.add_typer(mpi.app, name="mpi")


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        app()
    except ShantyError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
