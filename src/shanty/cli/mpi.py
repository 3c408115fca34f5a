"""`shanty mpi`: the MPIs of this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from shanty.cli.context import context, note
from shanty.cli.table import print_table

app = typer.Typer(
    help="List, install and remove MPIs.", no_args_is_help=True, rich_markup_mode=None
)
_Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
_Flavour = Annotated[str, typer.Argument(help="openmpi, openmpi4, mpich or intel.")]


@app.command("list")
def list_all(as_json: _Json = False) -> None:
    """List the MPIs that are here: shanty's own, the system's, those on PATH."""
    from shanty.launch import mpis

    here = context()
    found = mpis.installed(here.home, here.environ)
    if as_json:
        print(json.dumps([asdict(installation) for installation in found]))
        return
    print_table(
        ("FLAVOUR", "VERSION", "ORIGIN", "PREFIX"),
        [(one.flavour, one.version, one.origin, one.prefix) for one in found],
    )


@app.command()
def install(flavour: _Flavour) -> None:
    """Install an MPI from PyPI into a folder of its own; no compiler and no root needed."""
    from shanty.launch import mpis

    found = mpis.install(flavour, context().home, note)
    note(f"{found.flavour} {found.version} is at {found.prefix}")


@app.command()
def which(
    flavour: Annotated[str | None, typer.Argument(help="A flavour [the default].")] = None,
    as_json: _Json = False,
) -> None:
    """Say which MPI a run would use."""
    from shanty.launch import mpis

    here = context()
    found = mpis.select(flavour, here.home, here.environ)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    for key, value in asdict(found).items():
        print(f"{key:<9} {value}")


@app.command()
def remove(flavour: _Flavour) -> None:
    """Remove an MPI that `shanty mpi install` put here."""
    from shanty.launch import mpis

    note(f"{mpis.remove(flavour, context().home)} is removed")
