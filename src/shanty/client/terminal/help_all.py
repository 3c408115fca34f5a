"""The option --help-all, which shows what --help leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_ALL = "shanty.help_all"  # in what click keeps of a call


def help_all_option(help: str) -> Callable[[Any], Any]:
    """Give a command the option."""
    return click.option(
        "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_show, help=help
    )


def shows_all(ctx: click.Context) -> bool:
    """Return True where a help text is to have everything."""
    return _ALL in ctx.meta


def _show(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
