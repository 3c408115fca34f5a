"""Declares the flags of other platforms' commands: what each does here, or why it does nothing.

One table is behind the command line, its help, the notes and errors, and the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import click

from shanty.client.context import note
from shanty.client.terminal.help_all import shows_all
from shanty.client.terminal.options import run_option
from shanty.integrations.platforms.options_file import FileCommand
from shanty.runtime.errors import UsageError

Kind = Literal["does", "ignored", "refused"]

# Parameters that --help shows, of any platform.
_COMMON = (
    "name", "tags", "tags_comma", "workspace", "project", "project_path", "command", "module",
    "master_command", "master_machine_type", "worker_machine_type", "worker_count", "worker_type",
    "worker_replicas", "machine_type", "instance_type", "container", "worker_container",
    "docker_image", "experiment_env", "dataset_uri", "datasets", "limit",
)  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """One flag of a platform's command.

    `names` are its spellings, the present one first; `param` is its parameter. `text` tells what a
    flag `does`, or why it is `ignored` or `refused`; `fix` is what to do instead of a refused flag.
    `group` is its group in the help, `click` what else click has to know.
    """

    names: str
    param: str
    kind: Kind
    text: str
    group: str = ""
    fix: str = ""
    click: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The present spelling."""
        return self.names.split()[0]

    def option(self) -> Callable[[Any], Any]:
        """Make click's option of it; those that do nothing are not in the help's groups."""
        hidden = self.kind != "does"
        more = {"hidden": hidden, "help": self.text, **self.click}
        return click.option(*self.names.split(), self.param, **more)


def does(names: str, param: str, text: str, group: str, **more: Any) -> Flag:
    """Declare a flag that has a meaning here."""
    return Flag(names, param, "does", text, group, click=more)


def ignored(names: str, param: str, why: str, **more: Any) -> Flag:
    """Declare a flag that is taken and left out."""
    return Flag(names, param, "ignored", why, click=more)


def refused(names: str, param: str, why: str, fix: str, **more: Any) -> Flag:
    """Declare a flag without which the result would be another one."""
    return Flag(names, param, "refused", why, fix=fix, click=more)


def flag_options(flags: Sequence[Flag], own: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Return a decorator that gives a command all these flags, in their order.

    `own` are options of `shanty run` that it has, too; with them comes --dry-run.
    """

    def decorate(command: Any) -> Any:
        if own:
            command = click.option("--dry-run", is_flag=True, help="Print what would be run.")(
                command
            )
        for name in reversed(own):
            command = run_option(name)(command)
        for each in reversed(flags):
            command = each.option()(command)
        return command

    return decorate


def groups_of(flags: Iterable[Flag]) -> dict[str, list[str]]:
    """Return the groups of a help, with their parameters."""
    found: dict[str, list[str]] = {}
    for each in flags:
        if each.kind == "does":
            found.setdefault(each.group, []).append(each.param)
    return found


def is_given(value: Any) -> bool:
    """Return true for the value of a flag that was written."""
    return value not in (None, (), False, "")


def refuse(flags: Iterable[Flag], values: Mapping[str, Any]) -> None:
    """Raise UsageError for the first flag that was given and is refused."""
    for each in flags:
        if each.kind == "refused" and is_given(values.get(each.param)):
            raise UsageError(f"{each.name} has no counterpart here", each.text, each.fix)


def left_out(flags: Iterable[Flag], values: Mapping[str, Any]) -> list[str]:
    """Return the flags that were given and are ignored, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for each in flags:
        given = values.get(each.param)
        if each.kind == "ignored" and (is_given(given) or given is False):
            reasons.setdefault(each.text, []).append(each.name)
    return [f"{', '.join(names)} ({why})" for why, names in reasons.items()]


def note_left_out(left: Sequence[str]) -> None:
    """Say in one note what is left out, and why; nothing where all is taken."""
    if left:
        note(f"left out: {'; '.join(left)}")


class PlatformCommand(FileCommand):
    """Has a platform's flags in its help, in groups; those that do nothing are named at the end."""

    def __init__(
        self, *args: Any, flags: Sequence[Flag] = (), own: Sequence[str] = (), **more: Any
    ) -> None:
        does = [each.param for each in flags if each.kind == "does"]
        self.common = [name for name in does if name in _COMMON]
        super().__init__(*args, **more)
        self.flags = flags
        self.groups = {**groups_of(flags), "Of shanty's own": [*own, "dry_run"]}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write which flags are taken without a meaning, and which are refused."""
        if not shows_all(ctx):
            return
        for kind, title in (
            ("ignored", "Taken, and left out with a note that says why"),
            ("refused", "Refused, with what to do instead"),
        ):
            names = ", ".join(each.name for each in self.flags if each.kind == kind)
            if names:
                formatter.write_paragraph()
                formatter.write_text(f"{title}: {names}")
