"""Starts the program `shanty`: finds the verb, and turns errors into words and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from typing import NoReturn

import click

from shanty.cli.context import show_error
from shanty.runtime.errors import ShantyError, StorageError

# Each verb and the module of its command; the command has the verb's name with _ for a dash.
VERBS = {
    "run": "run", "rerun": "run", "ps": "runs", "show": "runs", "logs": "runs", "stop": "runs",
    "stacks": "stacks", "doctor": "doctor", "net": "net", "rm": "runs", "prune": "runs",
    "hosts": "hosts", "lab": "lab", "mpi": "mpi", "horovodrun": "horovodrun",
    "dmlc-submit": "dmlc_submit", "completion": "app",
}  # fmt: skip


class Verbs(click.Group):
    """Imports a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order in which people meet them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"shanty.cli.{VERBS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"shanty {version('shanty')}")
        ctx.exit()


@click.group(name="shanty", cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version.",
)  # fmt: skip
def app() -> None:
    """Distributed machine learning with MPI, without the set-up."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    For bash, in ~/.bashrc:  eval "$(shanty completion bash)"
    For zsh, in ~/.zshrc:    eval "$(shanty completion zsh)"
    For fish:                shanty completion fish > ~/.config/fish/completions/shanty.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # Choice admits only those that click knows
    click.echo(kind(app, {}, "shanty", "_SHANTY_COMPLETE").source())


def main() -> NoReturn:
    """Run the command line; SystemExit has its exit code."""
    try:
        code = app.main(prog_name="shanty", standalone_mode=False)
    except ShantyError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(_full(error))
    sys.exit(code if isinstance(code, int) else 0)


def _full(error: OSError) -> int:
    show_error(StorageError("the output cannot be written", error.strerror or str(error)))
    return StorageError.exit_code


def program() -> NoReturn:
    """Run `main`, then end the process at once.

    To take the interpreter down in good order costs a tenth of a short run.
    """
    code: object = 0
    try:
        main()
    except SystemExit as leave:
        code = leave.code
    status = code if isinstance(code, int) else int(code is not None)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        status = status or 128 + signal.SIGPIPE
    except OSError as error:
        status = status or _full(error)
    os._exit(status)
