"""Reads older flags of a verb's options: they work, and say what is written now."""

from __future__ import annotations

from collections.abc import Mapping

import click

from shanty.client.old_spellings import noted
from shanty.client.options import OPTIONS, PACKAGES

_OLD = {
    old: option.flag
    for option in OPTIONS.values()
    for old in option.old.split()
    if old.startswith("-")
}


class RemovingGroup(click.Group):
    """Has a command `rm`, which was called `remove`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name."""
        before = f"{ctx.info_name} remove"
        name = noted(before, f"{ctx.info_name} rm").split()[1] if cmd_name == "remove" else cmd_name
        return super().get_command(ctx, name)


class RunOptionsCommand(click.Command):
    """Has options of a run. `old`: older flags of this command alone, and what they are now."""

    old: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse words in which older flags are replaced."""
        return super().parse_args(ctx, self._current(ctx, args))

    def _takes_value(self, ctx: click.Context) -> dict[str, bool]:
        return {
            name: not param.is_flag
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in param.opts
        }

    def _current(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = self._takes_value(ctx)
        args, at = list(args), 0
        while at < len(args) and args[at] != "--":
            word = args[at]
            if not word.startswith("-"):
                if not ctx.allow_interspersed_args:
                    break
                at += 1
                continue
            flag, equals, value = word.partition("=")
            value = value if equals else next(iter(args[at + 1 :]), "")
            new = self._now(flag, value, takes_value)
            args[at] = word.replace(flag, new, 1)
            at += 2 if not equals and takes_value.get(new) else 1
        return args

    def _now(self, flag: str, value: str, known: dict[str, bool]) -> str:
        if flag == "--env" and value in PACKAGES and "--packages" in known:
            return noted(f"--env {value}", f"--packages {value}").split()[0]
        new = {**_OLD, **self.old}.get(flag)
        return noted(flag, new) if new in known and flag not in known else flag
