"""`shanty dmlc-submit`: starts a line for DMLC's tracker as a run."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import BinaryIO

import click

from shanty.client import jobs
from shanty.client.context import Context, context, note
from shanty.client.terminal.options import completed
from shanty.runtime.errors import UsageError
from shanty.runtime.lines.dmlc_submit import (
    CLUSTERS,
    LOG_LEVELS,
    OPTIONS,
    REFUSED,
    VERB,
    Wanted,
    hosts_of,
    parse,
    program,
)
from shanty.runtime.lines.option_table import SWITCH, WHOLE, Option
from shanty.runtime.localhost import all_here
from shanty.runtime.spec import JobSpec, Program

_FILES = ("--host-file", "--files", "--log-file")


class Line(click.Command):
    """Leaves the words to the tracker's own rules; its options are for help and completion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take all words as they are."""
        ctx.params["words"] = tuple(args)
        return []

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return what stands after the verb in the line on usage."""
        return ["[OPTIONS]…", "COMMAND", "[ARGS]…"]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options; other verbs do not load them."""
        return [_option(each) for each in _all()]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what becomes of the other options of dmlc-submit."""
        self.epilog = "Its other options are taken, and left out with a note that says why."
        super().format_epilog(ctx, formatter)


def _option(option: Option) -> click.Option:
    first = option.names[0]
    choices = {
        "--cluster": [name for name in CLUSTERS if name not in REFUSED],
        "--log-level": list(LOG_LEVELS),
    }
    kind: click.Choice[str] | click.Path | None = None
    if first in choices:
        kind = click.Choice(choices[first])
    elif first in _FILES:
        kind = click.Path()
    return click.Option(
        option.names,
        type=kind,
        help=option.help,
        hidden=option.rule[:1] != "@",
        metavar="N" if option.takes == WHOLE else None,
        is_flag=option.takes == SWITCH,
        shell_complete=completed("hosts") if first == "--on" else None,
    )


def _all() -> list[Option]:
    return list(dict.fromkeys([*OPTIONS.values(), *VERB.values()]))


@click.command(cls=Line, add_help_option=False)
@click.pass_context
def dmlc_submit(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Run a command as DMLC's dmlc-submit would, with its options.

    \b
    Examples:
      shanty dmlc-submit --cluster mpi --num-workers 3 python train.py
      shanty dmlc-submit --cluster ssh --host-file hosts --num-workers 4 python train.py
      shanty dmlc-submit --cluster local --num-workers 2 xgboost train.conf max_depth=4
    """
    wanted = parse(words, os.environ, {**OPTIONS, **VERB})
    if wanted.asks:
        click.echo(ctx.get_help())
        return
    verb = wanted.verb
    if wanted.log_file and "detach" in verb:
        raise UsageError(
            "--log-file and --detach do not go together",
            "the file is written by who follows the run",
            "leave --log-file out; `shanty logs -f RUN > FILE` writes it",
        )
    job = _job(wanted, context())
    for text in wanted.notes:
        note(text)
    if wanted.verbose:
        note(shlex.join(job.words()))
    from shanty.client.terminal.display import Show
    from shanty.client.terminal.start import start

    log = _log(wanted.log_file) if wanted.log_file and "dry-run" not in verb else None
    show = Show(quiet="quiet" in verb, as_json="json" in verb, log=log)
    sys.exit(start(context(), job, show, dry_run="dry-run" in verb, detach="detach" in verb))


def _job(wanted: Wanted, here: Context) -> JobSpec:
    """Make the job that a line asks for."""
    folder = Path.cwd()
    on, hostfile = wanted.verb.get("on"), wanted.hostfile or None
    each = wanted.each
    if wanted.hosts and not all_here(wanted.hosts):
        on = ",".join(wanted.hosts)
    elif wanted.hosts or (hostfile and all_here(hosts_of(hostfile))):
        hostfile, each = None, None
    elif wanted.cluster == "ssh" and not on and not hostfile:
        raise UsageError(
            "--cluster ssh needs hosts",
            fix="name them: --host-file FILE with one HOST or HOST:PORT a line, or --on HOSTS",
        )
    if wanted.cluster == "local" and on:
        raise UsageError(
            "--cluster local is this machine, and --on names others", fix="leave one out"
        )
    _check_files(wanted, folder, elsewhere=bool(on or hostfile))
    # DMLC's tracker starts any number of workers on one machine. Cores that the line asks for
    # by themselves have to be there.
    many = not on and not hostfile and wanted.cores in (None, 1)
    return jobs.job_typed(
        Program(tuple(program(wanted.command))),
        folder,
        {
            "ranks": wanted.ranks,
            "ranks_per_host": each,
            "cpus_per_rank": wanted.cores,
            "memory_per_rank": wanted.memory,
            "oversubscribe": True if many or "oversubscribe" in wanted.verb else None,
            "on": on,
            "hostfile": str(Path(hostfile).absolute()) if hostfile else None,
            "mpi": wanted.verb.get("mpi"),
            "env": wanted.variables,
            "name": jobs.run_name(wanted.name),
        },
    )


def _check_files(wanted: Wanted, folder: Path, *, elsewhere: bool) -> None:
    """Say which of --files do not go to the hosts."""
    for name in wanted.files if elsewhere else ():
        if not Path(os.path.abspath(name)).is_relative_to(folder):  # noqa: PTH100
            wanted.leave_out(f"--files {name}", "it is outside of the workspace, which hosts get")


def _log(path: str) -> BinaryIO:
    """Open the file of --log-file, which is appended to as DMLC's tracker does."""
    try:
        return Path(path).open("ab")
    except OSError as error:
        raise UsageError(f"--log-file {path} cannot be written", error.strerror or "") from error
