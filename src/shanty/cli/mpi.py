"""`shanty mpi`: lists, installs and removes the MPIs of this machine."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from shanty.client.context import context, note
from shanty.client.terminal.old_flags import RemovingGroup
from shanty.client.terminal.options import completed, json_option
from shanty.client.terminal.table import print_table

FLAVOURS = "openmpi5 (or openmpi), openmpi4, mpich, intel"


@click.group(cls=RemovingGroup)
def mpi() -> None:
    """List, install and remove MPIs."""


@mpi.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the MPIs that are here, and those that can be had.

    \b
    Example:
      shanty mpi list
    """
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
    there = {one.flavour for one in found}
    for name, (megabytes, on_disk) in mpis.SIZES.items():
        if name not in there:
            note(
                f"`shanty mpi install {name}` downloads {megabytes} MB ({on_disk} MB on disk), "
                "from PyPI"
            )


@mpi.command(epilog=f"Flavours: {FLAVOURS}.")
@click.argument("flavour", shell_complete=completed("mpis"))
def install(flavour: str) -> None:
    """Install an MPI from PyPI into a folder of its own.

    No compiler and no root are needed. What is downloaded is said before it begins.

    \b
    Example:
      shanty mpi install mpich
    """
    from shanty.launch import mpis

    found = mpis.install(flavour, context().home, note)
    note(f"{found.flavour} {found.version} is at {found.prefix}")


@mpi.command()
@click.argument("flavour", required=False, shell_complete=completed("mpis"))
@json_option
def which(flavour: str | None, as_json: bool) -> None:
    """Say which MPI a run would use.

    \b
    Examples:
      shanty mpi which
      shanty mpi which intel --json
    """
    from shanty.launch import mpis

    here = context()
    found = mpis.select(flavour, here.home, here.environ)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    for key, value in asdict(found).items():
        print(f"{key:<9} {value}")


@mpi.command()
@click.argument("flavour", shell_complete=completed("own_mpis"))
def rm(flavour: str) -> None:
    """Remove an MPI that `shanty mpi install` put here.

    \b
    Example:
      shanty mpi rm mpich
    """
    from shanty.launch import mpis

    note(f"{mpis.remove(flavour, context().home)} is removed")
