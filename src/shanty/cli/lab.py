"""`shanty lab`: makes a cluster in this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shanty.client.context import context, note
from shanty.client.terminal.options import completed, json_option
from shanty.client.terminal.table import print_table

if TYPE_CHECKING:
    from shanty.launch.lab.model import Lab

name_argument = click.argument("name", default="lab", shell_complete=completed("groups"))
host_argument = click.argument("host", shell_complete=completed("lab_hosts"))


@click.group()
def lab() -> None:
    """Make virtual hosts in this machine (Linux).

    Each has its own network and sshd.
    """


@lab.command()
@click.argument("hosts", type=int, default=3)
@click.option("--name", default="lab", help="Its hosts are called NAME1, NAME2 … [lab]")
@click.option("--nic", "nics", multiple=True, help="One more network; may be repeated.")
@click.option(
    "--rate", "rates", multiple=True, metavar="NIC=RATE",
    help="Slow an interface down, as eth0=200mbit; may be repeated.",
)  # fmt: skip
@click.option("--bare", is_flag=True, help="Hosts with sshd and a Python, and nothing of yours.")
@click.option("--shared-home", is_flag=True, help="One home on all hosts, as by NFS.")
@click.option("--slots", type=int, help="Slots a host [as many as it finds cores].")
def up(
    hosts: int, name: str, nics: tuple[str, ...], rates: tuple[str, ...], bare: bool,
    shared_home: bool, slots: int | None,
) -> None:  # fmt: skip
    """Start HOSTS virtual hosts [3].

    \b
    Examples:
      shanty lab up
      shanty lab up 3 --nic tb0 --rate eth0=200mbit
    """
    from shanty.launch.lab import control

    shown = sys.stderr.isatty()

    def progress(ready: int) -> None:
        if shown:
            print(f"\r{ready} of {hosts} hosts are up", end="", file=sys.stderr, flush=True)

    try:
        home = context().home
        words = (home, name, hosts, nics, rates, slots, progress)
        known = control.up(*words, bare=bare, shared_home=shared_home)
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    _print_hosts(known)
    first = known.hosts[0].name
    note(
        f"the lab {name} is up. For example:\n"
        f"  shanty run --on {name} --ppn 1 train.py\n"
        f"  ssh -F {known.folder / 'ssh_config'} {first} hostname\n"
        f"  shanty lab exec {first} ip addr\n"
        f"  shanty lab down{'' if name == 'lab' else f' {name}'}"
    )


@lab.command()
@name_argument
def down(name: str) -> None:
    """End a lab: its hosts, all that runs there, their files.

    \b
    Example:
      shanty lab down
    """
    from shanty.launch.lab import control, model

    model.check_name(name)  # it becomes a folder that is removed
    for run in control.down(context().home, name):
        note(f"run {run} was on there, and has ended with it")
    note(f"the lab {name} is gone")


@lab.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the labs.

    \b
    Example:
      shanty lab list
    """
    from shanty.launch.lab import control

    found = control.labs(context().home)
    if as_json:
        print(json.dumps([_as_dict(known) for known in found]))
        return
    rows = []
    for known in found:
        nics = ", ".join(nic.name for nic in known.nics)
        state, kind = "up" if known.alive else "gone", "bare" if known.bare else ""
        rows.append((known.name, state, str(len(known.hosts)), nics, kind))
    print_table(("LAB", "STATE", "HOSTS", "NICS", ""), rows)


@lab.command()
@name_argument
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the hosts of a lab.

    \b
    Example:
      shanty lab show
    """
    from shanty.launch.lab import control

    known = control.find(context().home, name)
    if as_json:
        print(json.dumps(_as_dict(known)))
    else:
        _print_hosts(known)


@lab.command("exec", context_settings={"allow_interspersed_args": False})
@host_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND at the console of a host.

    Its exit code is passed on.

    \b
    Example:
      shanty lab exec lab1 ip addr
    """
    from shanty.launch.lab import control

    known, member = control.find_host(context().home, host)
    sys.exit(control.execute(known, member, command))


def _add_action(name: str, help: str, done: str) -> None:
    """Add a command that does something to one host; `done` is what it says then."""

    @lab.command(name, help=f"{help}\n\n\b\nExample:\n  shanty lab {name} lab2")
    @host_argument
    def act(host: str) -> None:
        from shanty.launch.lab import control

        count = getattr(control, name)(*control.find_host(context().home, host))
        note(done.format(host=host, count=count))


_add_action(
    "cut",
    "Pull a host's cables; `join` plugs them in again.",
    "{host} is cut off; `shanty lab join {host}` ends that",
)
_add_action("join", "Plug a host's cables in again.", "{host} is on the network")
_add_action(
    "freeze",
    "Stop all processes of a host, sshd too; `thaw` ends that.",
    "{host} is frozen ({count} processes); `shanty lab thaw {host}` ends that",
)
_add_action("thaw", "Let every process of a frozen host go on.", "{host} goes on")
_add_action("reboot", "Switch a host off and on again.", "{host} is up again")


def _print_hosts(known: Lab) -> None:
    from shanty.launch.lab import control

    state = control.states(known)
    rows = [
        (
            member.name,
            state[member.name],
            *(nic.address(member.number) for nic in known.nics),
            f"{known.user}:{member.home}",
        )
        for member in known.hosts
    ]
    print_table(("HOST", "STATE", *(n.name.upper() for n in known.nics), "USER:HOME"), rows)


def _as_dict(known: Lab) -> dict[str, object]:
    from shanty.launch.lab import control

    state = control.states(known)
    return {
        "name": known.name,
        "alive": known.alive,
        "bare": known.bare,
        "user": known.user,
        "ssh_config": str(known.folder / "ssh_config"),
        "nics": [asdict(nic) for nic in known.nics],
        "hosts": [
            {
                "name": member.name,
                "state": state[member.name],
                "home": member.home,
                "addresses": {n.name: n.address(member.number) for n in known.nics},
            }
            for member in known.hosts
        ],
    }
