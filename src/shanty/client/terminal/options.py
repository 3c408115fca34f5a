"""Makes the options of verbs for click: those of a run, and those that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shanty.client.options import OPTIONS
from shanty.client.terminal.errors import Errors
from shanty.launch.options.option import Option


def as_json(help: str) -> Callable[[Any], Any]:
    """Make the option --json, which turns errors into JSON, too."""

    def remember(_ctx: click.Context, _param: click.Parameter, wanted: bool) -> bool:
        Errors.as_json = Errors.as_json or wanted
        return wanted

    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=remember, help=help
    )


def completed(kind: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Return what completes words of that kind for shells; `completion` has the kinds."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from shanty.client.terminal.completion import offered

        return offered(kind, ctx, param, incomplete)

    return complete


# Its id, the start of it, its name, or last.
run_argument = click.argument(
    "run", metavar="[RUN]", default="last", shell_complete=completed("runs")
)
json_option = as_json("As JSON, for programs.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Only the ranks' own output.")
detach_option = click.option("-d", "--detach", is_flag=True, help="Start it and come back at once.")


def run_option(
    name: str, *, flags: str = "", help: str = "", required: bool = False
) -> Callable[[Any], Any]:
    """Return the option of a run that has this name, with other `flags` or `help` if a verb wants.

    It is a decorator for a command.
    """
    option = OPTIONS[name]
    words = (flags or option.flags).split()
    more = _attributes(option)
    return click.option(*words, option.field, help=help or option.help, required=required, **more)


def parameter(option: Option) -> click.Option:
    """Return an option of another package's target as a parameter of a command."""
    more = _attributes(option)
    return click.Option([*option.flags.split(), option.field], help=option.help, **more)


def _attributes(option: Option) -> dict[str, Any]:
    """Return what click has to know of an option's values."""
    more: dict[str, Any] = {"is_flag": True} if option.kind is bool else {"type": option.kind}
    if option.repeatable:
        more["multiple"] = True
    if option.metavar:
        more["metavar"] = option.metavar
    if option.choices:
        more["shell_complete"] = lambda _ctx, _param, incomplete: [
            word for word in option.choices if word.startswith(incomplete)
        ]
    elif option.completes:
        more["shell_complete"] = completed(option.completes)
    return more


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all options of a run, in the order of the table."""
    for name in reversed(OPTIONS):
        command = run_option(name)(command)
    return command
