"""`shanty run`: start ranks and stay with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from shanty.cli import jobs
from shanty.cli.arguments import complete_group, detach_option, quiet_option
from shanty.cli.context import context
from shanty.launch.settings import ON_STALL
from shanty.launch.settings import on_stall as stall_action


class RunCommand(click.Command):
    """Lets `-m NAME` end the options, as Python's own command line does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options up to the first word that is none, or `-m`."""
        takes_value = {
            name: not param.is_flag
            for param in self.params
            if isinstance(param, click.Option)
            for name in param.opts
        }
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] != "--":
            if args[index] == "-m":
                args = [*args[:index], "--", *args[index:]]
                break
            index += 2 if takes_value.get(args[index]) else 1
        return super().parse_args(ctx, args)


@click.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
    required=True,
    metavar="SCRIPT | -m MODULE | PROGRAM | -- mpirun … [ARGS]…",
)
@click.option("-n", "-np", "--ranks", type=int, help="Ranks in all [one a slot].")
@click.option("--ranks-per-host", "--ppn", type=int, help="Ranks on each host.")
@click.option("-c", "--cpus-per-rank", type=int, help="Cores to bind each rank to [no binding].")
@click.option(
    "--memory-per-rank", metavar="SIZE", help="Refuse to start where it is not there: 4G."
)
@click.option("--gpus-per-rank", type=int, help="The same for GPUs.")
@click.option("--oversubscribe", is_flag=True, help="Allow more ranks than cores.")
@click.option(
    "--on",
    metavar="HOSTS",
    shell_complete=complete_group,
    help="Where: a,b:4,user@10.0.0.3 or a group [here].",
)
@click.option("--hostfile", type=Path, help="A file that names the hosts.")
@click.option("--mpi", help="openmpi (default), openmpi4, mpich, intel, or a prefix.")
@click.option("--python", help="Interpreter or virtual environment.")
@click.option(
    "--env",
    "environment",
    metavar="check|sync|none",
    shell_complete=lambda _ctx, _param, word: [m for m in jobs.ENVIRONMENTS if m.startswith(word)],
    help="Hosts' Python packages: compared, made the same, or as they are [check, else sync].",
)
@click.option("-e", "--set-env", "env", multiple=True, metavar="KEY[=VALUE]", help="A variable.")
@click.option("--env-file", type=Path, multiple=True, help="A file of KEY=VALUE lines.")
@click.option("-C", "--workdir", type=Path, help="Where to run [here].")
@click.option("--workspace", metavar="URL|ARCHIVE", help="Code from git or an archive instead.")
@click.option("-t", "--time-limit", metavar="TIME", help="End the run then: 90s, 15m, 2h.")
@click.option("--retries", type=click.IntRange(min=0), help="Attempts after a lost host [0].")
@click.option("--start-timeout", metavar="TIME", help="How long ranks may take to start [60s].")
@click.option(
    "--on-stall",
    metavar="warn|stop",
    shell_complete=lambda _ctx, _param, word: [w for w in ON_STALL if w.startswith(word)],
    help="When no rank makes progress [warn].",
)
@click.option("--stall-after", metavar="TIME", help="How long that takes, or off [60s].")
@click.option("--name", help="A name to find the run by.")
@click.option("--tag", multiple=True, help="A tag (repeatable).")
@click.option("--debug", type=int, metavar="RANK", help="That rank's pdb, on this terminal.")
@click.option("--raw", is_flag=True, help="Run the command once; it calls mpirun by itself.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and run nothing.")
@detach_option
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
def run(
    command: tuple[str, ...],
    ranks: int | None,
    ranks_per_host: int | None,
    cpus_per_rank: int | None,
    memory_per_rank: str | None,
    gpus_per_rank: int | None,
    oversubscribe: bool,
    on: str | None,
    hostfile: Path | None,
    mpi: str | None,
    python: str | None,
    environment: str | None,
    env: tuple[str, ...],
    env_file: tuple[Path, ...],
    workdir: Path | None,
    workspace: str | None,
    time_limit: str | None,
    retries: int | None,
    start_timeout: str | None,
    on_stall: str | None,
    stall_after: str | None,
    name: str | None,
    tag: tuple[str, ...],
    debug: int | None,
    raw: bool,
    dry_run: bool,
    detach: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run a script, a module, a program or your own mpirun line, as ranks of one MPI world.

    \b
    Examples:
      shanty run -n 4 train.py --epochs 3
      shanty run -n 2 -m mypackage.train
      shanty run --on 10.0.0.2,10.0.0.3 train.py
      shanty run -- mpirun -np 2 -bind-to none python train.py
    """
    here = context()
    folder = jobs.workspace_folder(workspace, workdir, here)
    given: dict[str, Any] = {
        "ranks": ranks,
        "ranks_per_host": ranks_per_host,
        "cpus_per_rank": cpus_per_rank,
        "memory_per_rank": jobs.size(memory_per_rank) if memory_per_rank else None,
        "gpus_per_rank": gpus_per_rank,
        "oversubscribe": oversubscribe or None,
        "on": on,
        "hostfile": str(hostfile.absolute()) if hostfile else None,
        "environment": jobs.environment_mode(environment),
        "source": workspace,
        "mpi": mpi,
        "python": python,
        "name": name,
        "env": jobs.environment(env, env_file, os.environ),
        "tags": tag,
        "debug_rank": debug,
        "time_limit": jobs.seconds(time_limit) if time_limit else None,
        "retries": retries,
        "start_timeout": jobs.seconds(start_timeout) if start_timeout else None,
        "on_stall": stall_action(on_stall, "--on-stall") if on_stall else None,
        "stall_after": None if stall_after is None else jobs.stall_after(stall_after),
    }
    job = jobs.make_job(jobs.make_command(command, folder, raw=raw), folder, given)
    from shanty.cli.start import Show, start

    show = Show(quiet=quiet, as_json=as_json)
    sys.exit(start(here, job, show, dry_run=dry_run, detach=detach))
