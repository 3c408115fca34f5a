"""Writes the options of a verb's help in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

_COLUMN = 28  # letters of the column with the options' names


class GroupedCommand(click.Command):
    """Has its options in `groups`: titles, and the names of parameters; the others come last."""

    groups: Mapping[str, Sequence[str]] = {}

    def groups_of(self, _ctx: click.Context) -> Mapping[str, Sequence[str]]:
        """Return the groups of this call's options."""
        return self.groups

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
        for title, names in {**groups, "Other": others}.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names], col_max=_COLUMN)
