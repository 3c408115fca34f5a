"""Writes the options of a verb's help in groups, and the many that a verb has only if asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from shanty.client.terminal.help_all import help_all_option, shows_all
from shanty.client.terminal.old_flags import RunOptionsCommand

_COLUMN = 28  # letters of the column with the options' names


class GroupedCommand(RunOptionsCommand):
    """Has its options in `groups`: titles, and the names of parameters; the others come last.

    `--help-all` shows them. `--help` shows the `common` ones alone, in this order, and groups of
    other packages; a command without any shows all.
    """

    groups: Mapping[str, Sequence[str]] = {}
    common: Sequence[str] = ()

    def groups_of(self, _ctx: click.Context) -> Mapping[str, Sequence[str]]:
        """Return the groups of this call's options."""
        return self.groups

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if self.common:
            help_all_option("Show all options and exit.")(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups."""
        records = {
            str(param.name): record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx))
        }
        groups = self.groups_of(ctx)
        grouped = {name for names in groups.values() for name in names}
        others = [name for name in records if name not in grouped]
        if self.common and not shows_all(ctx):
            more = {title: names for title, names in groups.items() if title not in self.groups}
            groups = {"Common options": [*self.common, *others], **more}
        else:
            groups = {**groups, "Other": others}
        for title, names in groups.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names], col_max=_COLUMN)
