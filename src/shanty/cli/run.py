"""`shanty run` and `shanty rerun`: start ranks and stay with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shanty.cli import jobs, options
from shanty.cli.context import context, note
from shanty.cli.grouped import GroupedCommand
from shanty.cli.options import completed, detach_option, json_option, quiet_option, run_argument
from shanty.runtime.errors import UsageError

# Options of other launchers, and what they are here.
_ELSEWHERE = {
    "-x": ("mpirun's", "-e NAME=VALUE"),
    **dict.fromkeys(("-env", "-genv"), ("mpiexec's", "-e NAME=VALUE")),
    **dict.fromkeys(("-H", "-host", "--host", "-hosts", "--hosts"), ("mpirun's", "--on HOST,HOST")),
    **dict.fromkeys(("-machinefile", "--machinefile", "-f"), ("mpiexec's", "--hostfile FILE")),
    "-hostfile": ("mpirun's", "--hostfile FILE"),
    **dict.fromkeys(("--n", "--np", "-N", "--num-proc"), ("mpirun's", "-n NUMBER")),
    **dict.fromkeys(("-ppn", "-perhost", "-npernode", "--npernode"), ("mpiexec's", "--ppn NUMBER")),
    **dict.fromkeys(("-wdir", "--wdir", "-wd", "--wd", "--chdir"), ("mpirun's", "-C FOLDER")),
    **dict.fromkeys(("--nproc-per-node", "--nproc_per_node"), ("torchrun's", "-n NUMBER")),
    **dict.fromkeys(("--num_processes", "--num-processes"), ("accelerate's", "-n NUMBER")),
    **dict.fromkeys(("--num_gpus", "--num-gpus"), ("deepspeed's", "-n NUMBER")),
    **dict.fromkeys(("--num-workers", "--num_workers"), ("dmlc-submit's", "-n NUMBER")),
    "--ntasks": ("srun's", "-n NUMBER"),
    "--nnodes": ("torchrun's", "--on HOST,HOST"),
    **dict.fromkeys(("--allow-run-as-root", "-allow-run-as-root"), ("mpirun's", "")),
    **dict.fromkeys(
        (f"{dashes}{name}" for dashes in ("-", "--") for name in ("mca", "bind-to", "map-by")),
        ("mpirun's", "shanty run -- mpirun {} …"),
    ),
}  # fmt: skip

if TYPE_CHECKING:
    from shanty.cli import process_lines
    from shanty.cli.context import Context
    from shanty.runtime.spec import JobSpec


class RunCommand(GroupedCommand):
    """Lets `-m NAME` end the options, as Python does; its help has them in groups."""

    groups = options.GROUPS

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
            name = args[index].partition("=")[0]
            if name in _ELSEWHERE and name not in takes_value:
                whose, ours = _ELSEWHERE[name]
                fix = f"write {ours.format(name)}" if ours else "leave it out: it is not needed"
                if ours.startswith("-"):
                    fix += ", or give the whole line of the other launcher after --"
                raise UsageError(f"shanty run has no option {name}", f"it is {whose}", fix)
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
    shell_complete=completed("files"),
    metavar="SCRIPT | -m MODULE | PROGRAM | -- mpirun … [ARGS]…",
)
@options.run_options
@click.option("--raw", is_flag=True, help="Run the command once; it calls mpirun by itself.")
@click.option(
    "-f",
    "manifest",
    type=Path,
    metavar="FILE",
    shell_complete=completed("files"),
    help="What an MPIJob of Kubeflow's asks for, anywhere.",
)
@click.option(
    "-o", "form", type=click.Choice(["yaml", "json"]), help="With --dry-run: how objects are shown."
)
@click.option("--dry-run", is_flag=True, help="Print what would be run, and run nothing.")
@detach_option
@quiet_option
@options.as_json("One JSON object a line on stdout.")
def run(
    command: tuple[str, ...],
    raw: bool,
    manifest: Path | None,
    form: str | None,
    dry_run: bool,
    detach: bool,
    quiet: bool,
    as_json: bool,
    env_file: tuple[Path, ...],
    workdir: Path | None,
    **typed: Any,
) -> None:
    """Run a script, module, program or mpirun line as ranks.

    All of them are in one MPI world, or the run fails and says why.

    \b
    Examples:
      shanty run -n 4 train.py --epochs 3
      shanty run -n 2 -m mypackage.train
      shanty run --on 10.0.0.2,10.0.0.3 train.py
      shanty run -- mpirun -np 2 -bind-to none python train.py
    """
    if not command and manifest is None:
        now = click.get_current_context()
        (missing,) = [each for each in now.command.params if each.name == "command"]
        raise click.MissingParameter(ctx=now, param=missing)
    jobs.refuse_in_ranks(os.environ)
    here = context()
    folder = jobs.workspace_folder(typed["source"], workdir, here)
    given = options.typed(typed)
    given["env"] = jobs.environment(typed["env"], env_file, os.environ)
    if form and not dry_run:
        raise UsageError(f"-o {form} says how --dry-run shows objects", fix="add --dry-run")
    if manifest is not None:
        job = jobs.of_manifest(manifest, command, folder, given)
        sys.exit(_started(here, job, dry_run, detach, quiet, as_json, form))
    known = None if raw else _process_line(command, folder, {**os.environ, **given["env"]})
    if known is None:
        job = jobs.make_job(jobs.make_command(command, folder, raw=raw), folder, given)
        jobs.note_late_options(job)
    else:
        from shanty.cli import process_lines
        from shanty.runtime.rank.launchers import answer

        text = answer(known.line)
        if text:
            click.echo(text)
            return
        what, given = process_lines.as_run(known, folder, given, here.environ)
        job = jobs.make_job(what, folder, given)
        for each in [] if quiet else known.line.notes:
            note(each)
    job = jobs.bring_script(job)
    sys.exit(_started(here, job, dry_run, detach, quiet, as_json, form))


def _started(
    here: Context,
    job: JobSpec,
    dry_run: bool,
    detach: bool,
    quiet: bool,
    as_json: bool,
    form: str | None,
) -> int:
    """Start the job, or show what would be."""
    from shanty.cli.start import start
    from shanty.cli.terminal import Show

    show = Show(quiet=quiet, as_json=as_json)
    return start(here, job, show, dry_run=dry_run, detach=detach, form=form or "")


def _process_line(
    words: tuple[str, ...], folder: Path, environ: Mapping[str, str]
) -> process_lines.Typed | None:
    """Return what a line for torchrun or the like asks for; None for all others, and soon."""
    from shanty.runtime.rank.command import launcher_of

    if launcher_of(["python", *words] if words[:1] == ("-m",) else list(words)) is None:
        return None
    from shanty.cli import process_lines

    return process_lines.read(words, folder, environ)


@click.command()
@run_argument
@detach_option
@quiet_option
@json_option
def rerun(run: str, detach: bool, quiet: bool, as_json: bool) -> None:
    """Run a job again, as a new run.

    It has the same command, options and folder.

    \b
    Examples:
      shanty rerun
      shanty rerun -d night
    """
    from shanty.cli.start import start
    from shanty.cli.terminal import Show
    from shanty.launch.index import read_job
    from shanty.runtime.errors import NotFoundError

    here = context()
    found = here.runs.find(run)
    job = read_job(found)
    if job is None:
        raise NotFoundError(f"{found.job} is missing or damaged, so its job is not known")
    show = Show(quiet=quiet, as_json=as_json)
    sys.exit(start(here, job, show, dry_run=False, detach=detach))
