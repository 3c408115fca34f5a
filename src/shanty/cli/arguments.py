"""Arguments that several verbs share."""

from __future__ import annotations

import click

HOW = "An id, the start of one, a name, or `last`."
run_argument = click.argument("run", metavar="[RUN]", default="last")
runs_argument = click.argument("run", metavar="RUN...", nargs=-1)
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Only the ranks' own output.")
detach_option = click.option("-d", "--detach", is_flag=True, help="Start it and come back at once.")
