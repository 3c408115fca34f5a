"""Completes words for bash, zsh and fish: files, runs, MPIs, groups and hosts.

A shell starts the program for every press of the key, so nothing is loaded or asked that is not
needed for an answer: what is known of runs comes from their files, and no host is reached.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import RunDir, home, is_run_id, read_json
from shanty.runtime.spec import JobSpec, State

VARIABLE = "_SHANTY_COMPLETE"  # set by the shell's part: the shell, and what is wanted
_NEWEST = 40  # runs that are looked at
_LONGEST = 50  # letters of a command beside its run
_OTHERS_WORDS = ("horovodrun", "dmlc-submit")  # what follows is a command with words of its own
_FINAL = {state.value for state in State if state.final}
_FISH_SPLITS, _FISH_SPLITS_ONCE = 'string split "," ', 'string split -m 1 "," '
_ZSH_REGISTERS = "    compdef "
_ZSH_BEGINS = "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what a shell needs to complete shanty's words.

    \b
    Examples:
      eval "$(shanty completion bash)"   in ~/.bashrc
      eval "$(shanty completion zsh)"    in ~/.zshrc
      shanty completion fish > ~/.config/fish/completions/shanty.fish
    """
    print(_SHELLS[shell](ctx.find_root().command, {}, "shanty", VARIABLE).source(), end="")


def register() -> None:
    """Let click complete as we do."""
    for name, shell in _SHELLS.items():
        add_completion_class(shell, name)


# ------------------------------------------------------------------------------------- shells


class _Completing(ShellComplete):
    """Completes a line of ours; behind a script, or another command, there are only files."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what may stand there; nothing where that cannot be known."""
        with contextlib.suppress(ShantyError, OSError, click.ClickException):
            if args[:1] == ["run"] and _has_command(self.cli, args[1:]):
                return _file(incomplete)
            found = super().get_completions(args, incomplete)
            option, equals, _ = incomplete.partition("=")
            if equals and option.startswith("--"):  # for this shell it is all one word
                for item in found:
                    item.value = f"{option}={item.value}"
            return found or (_file(incomplete) if args[:1] and args[0] in _OTHERS_WORDS else [])
        return []


class _Bash(_Completing, BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words; bash takes `--mpi=x` for three of them."""
        args, incomplete = super().get_completion_args()
        if incomplete == "=" and args and args[-1].startswith("--"):
            return args, ""
        if len(args) > 1 and args[-1] == "=" and args[-2].startswith("--"):
            return args[:-1], incomplete
        return args, incomplete


class _Zsh(_Completing, ZshComplete):
    source_template = ZshComplete.source_template.replace(
        _ZSH_REGISTERS, _ZSH_BEGINS + _ZSH_REGISTERS
    )


class _Fish(_Completing, FishComplete):
    source_template = FishComplete.source_template.replace(_FISH_SPLITS, _FISH_SPLITS_ONCE)


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def _has_command(cli: click.Command, args: list[str]) -> bool:
    """Return true where the words for `run` have come to what is to be run."""
    assert isinstance(cli, click.Group)
    run = cli.get_command(click.Context(cli), "run")
    assert run is not None
    return bool(run.make_context("run", list(args), resilient_parsing=True).params["command"])


# ------------------------------------------------------------------------------- what there is


def _file(incomplete: str) -> list[CompletionItem[str]]:
    return [CompletionItem(incomplete, type="file")]


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Have the shell complete the name of a file."""
    return _file(incomplete)


def folders(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Have the shell complete the name of a folder."""
    return [CompletionItem(incomplete, type="dir")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> object:
    """Complete the names and ids of the newest runs, the newest first: those that the verb takes.

    `stop` and `stacks` take those that are on, `rm` and `delete` those that have ended.
    """
    given = ctx.params.get(param.name or "") or ()
    given = given if isinstance(given, tuple) else ()
    wanted = {"stop": False, "stacks": False, "rm": True, "delete": True}.get(ctx.info_name or "")
    found: dict[str, CompletionItem[str]] = {}
    newest = _newest()
    for run in newest:
        state = str((read_json(run.status) or {}).get("state", ""))
        if wanted is not None and (state in _FINAL) is not wanted:
            continue
        name, words = "", ""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            job = JobSpec.from_json(read_json(run.job) or {})
            name, words = job.name or "", " ".join(" ".join(job.words()).split())[:_LONGEST]
        for word in (name, run.id):
            if word and word.startswith(incomplete) and word not in given:
                found.setdefault(word, CompletionItem(word, help=f"{state}: {words}"))
    if newest and "last".startswith(incomplete):
        found.setdefault("last", CompletionItem("last", help="the newest run"))
    return list(found.values())


def names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the names of the newest runs."""
    return sorted(name for name in _values("name") if name.startswith(incomplete))


def tags(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the tags of the newest runs."""
    return sorted(tag for tag in _values("tags") if tag.startswith(incomplete))


def _values(key: str) -> set[str]:
    found: set[str] = set()
    for run in _newest():
        value = (read_json(run.job) or {}).get(key) or ()
        found.update([value] if isinstance(value, str) else map(str, value))
    return found


def _newest() -> list[RunDir]:
    names = filter(is_run_id, _entries("runs"))
    return [RunDir(home(os.environ) / "runs" / name) for name in sorted(names)[: -_NEWEST - 1 : -1]]


def _entries(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [path.name for path in (home(os.environ) / folder).iterdir()]
    return []


def metrics(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete what is measured of hosts."""
    from shanty.launch.measurements import OF_HOSTS

    return [name for name in OF_HOSTS if name.startswith(incomplete)]


def states(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the states of a run."""
    return [state.value for state in State if state.value.startswith(incomplete)]


def mpis(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the flavours of MPI, or the folder of one."""
    from shanty.runtime.mpi.flavours import FLAVOURS

    if "/" in incomplete or incomplete.startswith("."):
        return _file(incomplete)
    known = [("openmpi", "the newest Open MPI"), *((f.name, f.title) for f in FLAVOURS.values())]
    return [CompletionItem(name, help=t) for name, t in known if name.startswith(incomplete)]


def own_mpis(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the MPIs that shanty has installed."""
    names = sorted(_entries("mpi"))
    return [name for name in names if name.startswith(incomplete) and not name.startswith(".")]


def groups(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the name of a group of hosts."""
    from shanty.launch.cluster import inventory

    return [each for each in inventory.names(home(os.environ)) if each.startswith(incomplete)]


def machine_types(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the last of several machine types."""
    from shanty.launch.machines import types

    before, comma, last = incomplete.rpartition(",")
    return [
        before + comma + each for each in types.names(home(os.environ)) if each.startswith(last)
    ]


def hosts(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the last of several hosts: groups, hosts of groups, names of ~/.ssh/config."""
    before, comma, last = incomplete.rpartition(",")
    user, at, begun = last.rpartition("@")
    taken = set(before.split(","))
    known = _hosts_of_groups() | dict.fromkeys(_ssh_names(), "in ~/.ssh/config")
    return [
        CompletionItem(before + comma + user + at + name, help=text)
        for name, text in known.items()
        if name.startswith(begun) and name not in taken
    ]


def lab_hosts(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete a host of a lab."""
    from shanty.launch.cluster import inventory

    where = home(os.environ)
    labs = [g for g in (inventory.load(n, where) for n in inventory.names(where)) if g.lab]
    return [host.name for lab in labs for host in lab.hosts if host.name.startswith(incomplete)]


def _hosts_of_groups() -> dict[str, str]:
    from shanty.launch.cluster import inventory

    where = home(os.environ)
    known = inventory.names(where)
    found = dict.fromkeys(known, "a group of hosts")
    for name in known:
        with contextlib.suppress(ShantyError):
            for host in inventory.load(name, where).hosts:
                found.setdefault(host.name, f"of {name}")
    return found


def _ssh_names() -> list[str]:
    """Return the names that the user's own configuration of ssh gives to hosts."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path("~/.ssh/config").expanduser().read_text(encoding="utf-8", errors="replace")
    lines = (line.replace("=", " ", 1).split() for line in text.splitlines())
    named = (word for words in lines if words and words[0].lower() == "host" for word in words[1:])
    return [word for word in named if not set('*?!"') & set(word)]


def own_images(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> object:
    """Complete the images that shanty has built."""
    from shanty.launch.containers.build import known

    found = {name.removeprefix("localhost/") for one in known() for name in one.names}
    return sorted(name for name in found if name.startswith(incomplete))
