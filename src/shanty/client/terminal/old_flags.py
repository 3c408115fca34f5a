"""Reads older flags of a verb's options: they work, and say what is written now."""

from __future__ import annotations

from collections.abc import Mapping

import click

from shanty.client.old_spellings import say
from shanty.client.options import OPTIONS, PACKAGES, bare

OLD_FLAGS = {old: option.flag for option in OPTIONS.values() for old in option.old.split()}


class RemovingGroup(click.Group):
    """Has a command `rm`, which was called `remove`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name."""
        if cmd_name == "remove":
            cmd_name = "rm"
            if not ctx.resilient_parsing:  # where a shell completes a line
                say(f"{ctx.info_name} remove", f"{ctx.info_name} rm")
        return super().get_command(ctx, cmd_name)


class RunOptionsCommand(click.Command):
    """Has options of a run: older flags, too, and those that may stand without a value.

    old: older flags of this command alone, and what they are now.
    last: the argument that ends the options although it begins with a dash; "" for none.
    """

    old: Mapping[str, str] = {}
    last = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, once older flags and missing values are replaced."""
        args, at = list(args), 0
        while at < len(args) and args[at] != "--":
            word = args[at]
            if self.last and word == self.last:
                args.insert(at, "--")
                break
            if not word.startswith("-"):
                if not ctx.allow_interspersed_args:
                    break
                at += 1
                continue
            flag, equals, value = word.partition("=")
            takes_value = self.takes_value(ctx, flag)
            value = value if equals else "".join(args[at + 1 : at + 2])
            new = self.current(ctx, takes_value, flag, value)
            args[at] = word.replace(flag, new, 1)
            if takes_value.get(new) and bare(args[at]):
                args[at] += f"={bare(args[at])}"
            at += 2 if _takes_next(args[at], takes_value) else 1
        return super().parse_args(ctx, args)

    def takes_value(self, ctx: click.Context, _flag: str) -> dict[str, bool]:
        """Return the flags that there are, and which take a value, where this one was typed."""
        return {
            name: not param.is_flag
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in param.opts
        }

    def current(self, ctx: click.Context, known: Mapping[str, bool], flag: str, value: str) -> str:
        """Return what a flag is called now, with this value or next word."""
        old, new = flag, {**OLD_FLAGS, **self.old}.get(flag, "")
        if flag == "--env" and value in PACKAGES and "--packages" in known:
            old, new = f"--env {value}", "--packages"
        elif new not in known or flag in known:
            return flag
        if not ctx.resilient_parsing:
            say(old, new + old.removeprefix(flag))
        return new


def _takes_next(word: str, takes_value: Mapping[str, bool]) -> bool:
    """Return True where the next word is this option's value; `-dn` is `-d -n`."""
    if word.startswith("--") or word in takes_value:
        return takes_value.get(word, False)
    for at, letter in enumerate(word[1:], 2):
        if takes_value.get(f"-{letter}", True):
            return f"-{letter}" in takes_value and at == len(word)
    return False
