"""Arguments that several verbs share. A run is an id, the start of one, a name, or `last`."""

from __future__ import annotations

import click

run_argument = click.argument("run", metavar="[RUN]", default="last")
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Only the ranks' own output.")
detach_option = click.option("-d", "--detach", is_flag=True, help="Start it and come back at once.")
