"""The program `shanty`: its verbs, and what becomes of an error."""

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

VERBS = (
    "run", "rerun", "ps", "show", "logs", "stop", "stacks", "doctor", "net", "rm", "prune", "hosts",
    "lab", "mpi", "horovodrun", "dmlc-submit", "completion",
)  # fmt: skip


class Verbs(click.Group):
    """A group that imports a verb's module when the verb is used: each has a command `VERB`.

    A dash in the verb is an underscore there.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which people meet them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command."""
        if cmd_name not in VERBS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"shanty.cli.{name}"), name)
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
    """What `shanty` starts: `main`, and an end at once.

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
