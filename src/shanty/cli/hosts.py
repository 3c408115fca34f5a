"""`shanty hosts`: keeps groups of hosts under a name, for `--on NAME`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from shanty.client.context import context, note
from shanty.client.terminal.old_flags import RemovingGroup
from shanty.client.terminal.options import completed, json_option
from shanty.client.terminal.table import print_table
from shanty.runtime.errors import UsageError

name_argument = click.argument("name", shell_complete=completed("groups"))


@click.group(cls=RemovingGroup)
def hosts() -> None:
    """Keep groups of hosts under a name, for --on NAME."""


@hosts.command(epilog="HOST is [USER@]HOST[:SLOTS], [IPV6]:SLOTS or ssh://[USER@]HOST[:PORT].")
@name_argument
@click.argument("host", metavar="[HOST]...", nargs=-1, shell_complete=completed("hosts"))
@click.option(
    "--hostfile", type=click.Path(path_type=Path, dir_okay=False),
    help="Take hosts from a file of Open MPI's, MPICH's, DeepSpeed's or MLX's.",
)  # fmt: skip
def add(name: str, host: tuple[str, ...], hostfile: Path | None) -> None:
    """Make a group of hosts, or add hosts to one.

    A host that it has gets the new slots.

    \b
    Examples:
      shanty hosts add desk ann@10.0.0.2 10.0.0.3:4
      shanty hosts add rack 'gpu[1-8]'
      shanty hosts add desk --hostfile hostfile
    """
    from shanty.launch import inventory

    home = context().home
    inventory.check_name(name)
    named = [part for text in host for part in inventory.spread(text) if part]
    given = list(map(inventory.parse_host, named))
    if hostfile is not None:
        given += inventory.read_hostfile(hostfile)
    if not given:
        raise UsageError(
            "no host is given", fix=f"shanty hosts add {name} HOST…, or --hostfile FILE"
        )
    group = inventory.extended(name, given, home)
    inventory.save(group, home)
    count = len(group.hosts)
    note(f"{name} has {count} host{'s' * (count != 1)}; use it with --on {name}")


@hosts.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the groups.

    \b
    Example:
      shanty hosts list
    """
    from shanty.launch import inventory

    home = context().home
    groups = [inventory.load(name, home) for name in inventory.names(home)]
    if as_json:
        print(json.dumps([{"name": group.name, **group.to_json()} for group in groups]))
    elif groups:
        rows = [
            (
                group.name,
                str(len(group.hosts)),
                "lab" if group.lab else "",
                ",".join(inventory.written(host) for host in group.hosts),
            )
            for group in groups
        ]
        print_table(("GROUP", "COUNT", "KIND", "HOSTS"), rows)
    else:
        print("no groups of hosts")


@hosts.command()
@name_argument
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the hosts of a group.

    \b
    Example:
      shanty hosts show desk
    """
    from shanty.launch import inventory

    group = inventory.load(name, context().home)
    if as_json:
        print(json.dumps({"name": group.name, **group.to_json()}))
        return
    print_table(
        ("HOST", "USER", "PORT", "SLOTS", "SSH CONFIGURATION"),
        [
            (
                host.name,
                host.user or "",
                str(host.port or ""),
                "as it has" if host.slots is None else str(host.slots),
                host.config,
            )
            for host in group.hosts
        ],
    )


@hosts.command()
@name_argument
def rm(name: str) -> None:
    """Forget a group; nothing is done to its hosts.

    \b
    Example:
      shanty hosts rm desk
    """
    from shanty.launch import inventory

    inventory.remove(name, context().home)
    note(f"the group {name} is removed")
