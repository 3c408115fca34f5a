"""`shanty machines`: names for machines of one kind, of which experiments get free ones."""

from __future__ import annotations

import json
from typing import Any

import click

from shanty.client.context import Context, context, note
from shanty.client.options import OPTIONS
from shanty.client.terminal.old_flags import RemovingGroup
from shanty.client.terminal.options import completed, json_option, run_option
from shanty.client.terminal.table import print_table
from shanty.launch.options.known import BUILTIN
from shanty.runtime.errors import UsageError

name_argument = click.argument("name", shell_complete=completed("machine_types"))
# What a type may say of its machines to the queue that gives them.
_OF_QUEUES = {each.scheme: each.of_machines for each in BUILTIN if each.of_machines}
_FIELDS = [each for fields in _OF_QUEUES.values() for each in fields]


@click.group(cls=RemovingGroup)
def machines() -> None:
    """Name machines of one kind, whose runs wait in a queue."""


def _queue_options(command: Any) -> Any:
    for field in reversed(_FIELDS):
        command = run_option(field)(command)
    return command


@machines.command()
@name_argument
@run_option(
    "on",
    required=True,
    help="Hosts and groups, as gpu[1-8] or ann@10.0.0.2,desk; local; slurm; k8s.",
)
@click.option("--slots", type=click.IntRange(1), metavar="N", help="Ranks on each [as it has].")
@click.option("--gpus", type=click.IntRange(0), metavar="N", help="GPUs that each has.")
@_queue_options
def add(name: str, on: str, slots: int | None, gpus: int | None, **typed: Any) -> None:
    """Name machines, for --machines and for experiments.

    \b
    Examples:
      shanty machines add laptop --on local
      shanty machines add p2.xlarge --on gpu[1-8] --gpus 1
      shanty machines add a100 --on slurm --partition gpu --gpus 4
      shanty machines add small --on k8s --node-selector pool=cpu --slots 2
    """
    from shanty.client.options import typed as read
    from shanty.launch.machines import types

    given = {key: value for key, value in read(typed).items() if value not in (None, (), False)}
    kind = types.MachineType(name, on.strip(), slots, gpus, given)
    own = _OF_QUEUES.get(kind.kind, ())
    for field in given:
        if field not in own:
            where = "these machines" if kind.kind not in _OF_QUEUES else kind.kind
            flag = OPTIONS[field].flags.split()[0]
            raise UsageError(f"{flag} is not for {where}", fix="leave it out")
    home = context().home
    hosts = kind.hosts(home)
    known = name in types.names(home)
    types.save(kind, home)
    count = f"{len(hosts)} machine{'s' * (len(hosts) != 1)}" if hosts else f"machines of {on}"
    note(f"{name} {'is now' if known else 'is'} {count}; use it with --machines {name}")


@machines.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the types, and how many machines of each are free.

    \b
    Example:
      shanty machines list
    """
    from shanty.launch.machines import types

    here = context()
    kinds = [types.load(name, here.home) for name in types.names(here.home)]
    taken = _users(here)
    rows, values = [], []
    for kind in kinds:
        there = list(kind.machines(here.home))
        free = [each for each in there if each not in taken]
        values.append({"name": kind.name, **kind.to_json(), "machines": there, "free": free})
        counts = (str(len(there)), str(len(free))) if there else ("", "as the queue has")
        rows.append(
            (kind.name, kind.on, *counts, *(str(each or "") for each in (kind.slots, kind.gpus)))
        )
    if as_json:
        print(json.dumps(values))
    elif rows:
        print_table(("TYPE", "ON", "COUNT", "FREE", "SLOTS", "GPUS"), rows)
    else:
        print("no machine types; for this machine: shanty machines add laptop --on local")


@machines.command()
@name_argument
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the machines of a type, and which runs are on them.

    \b
    Example:
      shanty machines show p2.xlarge
    """
    from shanty.launch.machines import types

    here = context()
    kind = types.load(name, here.home)
    taken = _users(here)
    there = list(kind.machines(here.home))
    if as_json:
        runs = {each: taken.get(each, []) for each in there}
        print(json.dumps({"name": name, **kind.to_json(), "machines": runs}))
    elif there:
        rows = [(each, ", ".join(taken.get(each, ())) or "free") for each in there]
        print_table(("MACHINE", "RUNS"), rows)
    else:
        words = [f"{key}={value}" for key, value in kind.options.items()]
        print(f"{name}: machines of {kind.on}, as its queue gives them {' '.join(words)}".strip())


@machines.command()
@name_argument
def rm(name: str) -> None:
    """Forget a type; nothing is done to its machines.

    \b
    Example:
      shanty machines rm p2.xlarge
    """
    from shanty.launch.machines import types

    types.remove(name, context().home)
    note(f"the machine type {name} is removed")


def _users(here: Context) -> dict[str, list[str]]:
    from shanty.launch.machines.types import users

    here.runs.refresh()
    return users(here.runs.on())
