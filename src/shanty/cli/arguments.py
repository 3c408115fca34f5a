"""Arguments that several verbs share. A run is an id, the start of one, a name, or `last`."""

from __future__ import annotations

import click

run_argument = click.argument("run", metavar="[RUN]", default="last")
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Only the ranks' own output.")
detach_option = click.option("-d", "--detach", is_flag=True, help="Start it and come back at once.")


def complete_group(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """For shells: the groups of hosts whose names begin so, the last one in a list of hosts."""
    from shanty.cli.context import context
    from shanty.launch.cluster import inventory

    before, comma, last = incomplete.rpartition(",")
    names = inventory.names(context().home)
    return [before + comma + name for name in names if name.startswith(last)]
