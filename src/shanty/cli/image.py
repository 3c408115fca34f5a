"""`shanty image`: builds images of the current environment, lists and removes them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shanty.client.context import context, note
from shanty.client.options import registry_password
from shanty.client.terminal.options import completed, json_option
from shanty.client.terminal.table import print_table
from shanty.runtime.containers.engines import LAYERED
from shanty.runtime.errors import UsageError

if TYPE_CHECKING:
    from shanty.launch.containers.build import Plan

runtime_option = click.option(
    "--runtime", type=click.Choice(LAYERED), help="docker or podman [whichever is there]."
)


@click.group()
def image() -> None:
    """Make container images of your environment."""


@image.command()
@click.argument("name", required=False)
@click.option("--base", help="The image to build on [python:X.Y-slim].")
@click.option(
    "--python", metavar="PATH", help="The environment to take [as for runs].",
    shell_complete=completed("files"),
)  # fmt: skip
@click.option(
    "--requirements", metavar="FILE", shell_complete=completed("files"),
    help="Take the packages that FILE names: requirements.txt, pyproject.toml.",
)  # fmt: skip
@click.option(
    "--mpi", help="The MPI to put in [as for runs]; image: that of --base.",
    shell_complete=completed("mpis"),
)  # fmt: skip
@click.option("--with-code", is_flag=True, help="Put the workspace in, at /work.")
@click.option(
    "--tag", "tags", multiple=True, metavar="NAME", help="One more name; may be repeated."
)
@click.option("--push", is_flag=True, help="Push it to the registry in its name.")
@click.option("--registry-user", metavar="USER", help="Login for that registry.")
@click.option(
    "--registry-password", metavar="FILE", shell_complete=completed("files"),
    help="A file with its password, or env:NAME [env:SHANTY_REGISTRY_PASSWORD].",
)  # fmt: skip
@runtime_option
@click.option("--dry-run", is_flag=True, help="Show what would go in, and make nothing.")
@json_option
def build(
    name: str | None, base: str | None, python: str | None, requirements: str | None,
    mpi: str | None, with_code: bool, tags: tuple[str, ...], push: bool, registry_user: str | None,
    registry_password: str | None, runtime: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make an image of the current environment.

    It holds the packages that a run would take, shanty and an MPI. Nothing is made where an image
    of the same is there. NAME is the name of the current folder by default.

    \b
    Examples:
      shanty image build
      shanty image build registry.example.org/me/digits:2 --with-code --push
      shanty image build --base my/cuda:12 --python ~/venvs/train
    """
    from shanty.client.terminal.display import leave_when_interrupted
    from shanty.launch.containers import build as builder

    leave_when_interrupted()
    here = context()
    folder = Path.cwd()
    names = tuple(dict.fromkeys([name or builder.usual_name(folder), *tags]))
    wanted = builder.Wanted(
        names, folder, base, python, requirements, mpi, with_code=with_code, runtime=runtime
    )
    here.progress.quiet = as_json
    planned = builder.plan(wanted, here.home, here.environ, here.progress)
    if dry_run:
        here.progress("")
        _show(planned, as_json=as_json)
        return
    built = builder.build(planned, here.home, here.progress)
    here.progress("")
    for each in names if push else ():
        password = _password(registry_user, registry_password)
        here.progress(f"pushes {each}")
        builder.push(planned, each, registry_user or "", password)
        here.progress("")
    if as_json:
        print(json.dumps({**asdict(built), "names": names, "inputs": planned.hash, "pushed": push}))
        return
    size = f"{built.size / 1e6:.0f} MB"
    note(
        f"{names[0]} is built ({built.engine}, {size})"
        if built.new
        else f"{names[0]} is up to date ({built.engine}, {size})"
    )


def _password(user: str | None, source: str | None) -> str:
    """The registry's password, from where the option says that it is."""
    if user is None:
        if source is not None:
            raise UsageError("--registry-password goes with --registry-user")
        return ""
    from shanty.launch.containers.images import password_from
    from shanty.runtime.spec import REGISTRY_PASSWORD

    where = registry_password(source, Path.cwd()) if source else None
    return password_from(where or f"env:{REGISTRY_PASSWORD}", user, os.environ)


def _show(planned: Plan, *, as_json: bool) -> None:
    parts = [{"what": part.title, "bytes": part.size} for part in planned.parts]
    base = planned.base
    if as_json:
        values = {"base": base.name, "python": base.venv.version, "packages_of": planned.source}
        names = list(planned.wanted.names)
        print(
            json.dumps(
                {"names": names, **values, "engine": planned.engine, "inputs": planned.hash,
                 "layers": parts}
            )
        )  # fmt: skip
        return
    print(f"# name      {', '.join(planned.wanted.names)}, by {planned.engine}")
    print(f"# base      {base.name}, Python {base.venv.version}")
    print(f"# packages  of {planned.source}")
    for part in planned.parts:
        print(f"# layer     {part.title} ({part.size / 1e6:.0f} MB)")


@image.command("list")
@runtime_option
@json_option
def list_all(runtime: str | None, as_json: bool) -> None:
    """List the images that shanty has built here.

    \b
    Example:
      shanty image list
    """
    from shanty.launch.containers import build as builder

    found = builder.known(runtime)
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    rows = []
    for one in found:
        for name in one.names or ("<none>",):
            rows.append((name, one.id[:12], f"{one.size / 1e6:.0f} MB", one.engine, one.base))
    print_table(("IMAGE", "ID", "SIZE", "ENGINE", "BASE"), rows)


@image.command()
@click.argument("names", nargs=-1, required=True, shell_complete=completed("own_images"))
@runtime_option
def rm(names: tuple[str, ...], runtime: str | None) -> None:
    """Remove images that shanty has built here.

    \b
    Example:
      shanty image rm digits
    """
    from shanty.launch.containers import build as builder

    for name in names:
        engines = builder.remove(name, runtime)
        note(f"{name} is removed from {' and '.join(engines)}")
