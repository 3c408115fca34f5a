"""`shanty run` and `shanty rerun`: start ranks and stay with them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shanty.client import jobs, options
from shanty.client.command import bring_script, make_command, note_late_options, refuse_in_ranks
from shanty.client.context import context, note
from shanty.client.terminal.grouped import GroupedCommand
from shanty.client.terminal.old_flags import OLD_FLAGS
from shanty.client.terminal.options import (
    as_json,
    completed,
    detach_option,
    json_option,
    parameter,
    quiet_option,
    run_argument,
    run_options,
)
from shanty.launch.options.known import external
from shanty.launch.options.option import Option
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

# Set where other packages are asked for options of their targets, which takes time.
_WITH_OTHERS = "shanty.options_of_others"

if TYPE_CHECKING:
    from shanty.cli import process_lines


class RunCommand(GroupedCommand):
    """Lets `-m NAME` end the options, as Python does; its help has them in groups."""

    groups = options.GROUPS | {
        "Kubernetes": (*options.GROUPS["Kubernetes"], "manifest", "form")
    }  # fmt: skip

    common = options.COMMON
    old: Mapping[str, str] = {"-f": "--manifest"}
    last = "-m"

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; those of other packages' targets once they are asked for."""
        others = [each for options in self._of_others(ctx).values() for each in options]
        return [*super().get_params(ctx), *map(parameter, others)]

    def groups_of(self, ctx: click.Context) -> Mapping[str, Sequence[str]]:
        """Return the groups, with one for each target of another package that has options."""
        return self.groups | {
            title: [each.field for each in options]
            for title, options in self._of_others(ctx).items()
        }

    def _of_others(self, ctx: click.Context) -> dict[str, list[Option]]:
        """Return the options of other packages' targets, by title, once they are asked for."""
        own = {each.name for each in self.params}
        targets = external() if _WITH_OTHERS in ctx.meta else ()
        found = {
            each.title: [option for option in each.options if option.field not in own]
            for each in targets
        }
        return {title: options for title, options in found.items() if options}

    def takes_value(self, ctx: click.Context, flag: str) -> dict[str, bool]:
        """Return the flags; those of other packages' targets where this flag is of no other."""
        known = super().takes_value(ctx, flag)
        unknown = flag.startswith("--") and flag not in (*known, *OLD_FLAGS)
        if unknown or flag in ("--help", "--help-all"):
            ctx.meta[_WITH_OTHERS] = True
            return super().takes_value(ctx, flag)
        return known

    def current(self, ctx: click.Context, known: Mapping[str, bool], flag: str, value: str) -> str:
        """Return what a flag is called now; UsageError for one of another launcher."""
        if flag in _ELSEWHERE and flag not in known and not (flag == "-f" and _is_manifest(value)):
            whose, ours = _ELSEWHERE[flag]
            fix = f"write {ours.format(flag)}" if ours else "leave it out: it is not needed"
            if ours.startswith("-"):
                fix += ", or give the whole line of the other launcher after --"
            raise UsageError(f"shanty run has no option {flag}", f"it is {whose}", fix)
        return super().current(ctx, known, flag, value)


def _is_manifest(name: str) -> bool:
    """Tell a manifest, as `-f` took it before, from a host file, as mpiexec's `-f` takes it."""
    path = Path(name)
    if name.endswith((".yaml", ".yml", ".json")) or (path.exists() and not path.is_file()):
        return True  # also a pipe
    try:
        return bool(re.search(r"""(^|[{,])\s*["']?kind["']?\s*:""", path.read_text(), re.M))
    except (OSError, ValueError):
        return False


@click.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
    shell_complete=completed("files"),
    metavar="SCRIPT | -m MODULE | PROGRAM | -- mpirun … [ARGS]…",
)
@run_options
@click.option("--raw", is_flag=True, help="Run the command once; it calls mpirun by itself.")
@click.option(
    "--manifest",
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
@as_json("One JSON object a line on stdout.")
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
    refuse_in_ranks(os.environ)
    here = context()
    folder = jobs.workspace_folder(typed["source"], workdir, here)
    given = options.typed(typed)
    given["env"] = jobs.environment(typed["env"], env_file, os.environ)
    if form and not dry_run:
        raise UsageError(f"-o {form} says how --dry-run shows objects", fix="add --dry-run")
    known = None
    if manifest is None and not raw:
        known = process_line(command, folder, {**os.environ, **given["env"]})
    if manifest is not None:
        from shanty.client.manifest import of_manifest

        job = of_manifest(manifest, command, folder, given)
    elif known is None:
        job = jobs.job_typed(make_command(command, folder, raw=raw), folder, given)
        note_late_options(job)
        job = bring_script(job)
    else:
        from shanty.cli import process_lines

        text = known.line.answer("")
        if text:
            click.echo(text)
            return
        what, given = process_lines.as_run(known, folder, given, here.environ)
        job = bring_script(jobs.job_typed(what, folder, given))
        for each in [] if quiet else known.line.notes:
            note(each)
    from shanty.client.terminal.display import Show
    from shanty.client.terminal.start import start

    show = Show(quiet=quiet, as_json=as_json)
    sys.exit(start(here, job, show, dry_run=dry_run, detach=detach, form=form or ""))


def process_line(
    words: tuple[str, ...], folder: Path, environ: Mapping[str, str]
) -> process_lines.Typed | None:
    """Return what a line for torchrun or the like asks for; None for all others, and soon."""
    from shanty.runtime.lines.command import launcher_of

    # `python -m`, or `-m` alone, comes to the same as the launcher's name.
    found = launcher_of(["python", *words] if words[:1] == ("-m",) else list(words))
    if found is None:
        return None
    from shanty.cli import process_lines

    return process_lines.read(*found, folder, environ)


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
    from shanty.client.terminal.display import Show
    from shanty.client.terminal.start import start

    here = context()
    job = here.job_of(here.runs.find(run))
    show = Show(quiet=quiet, as_json=as_json)
    sys.exit(start(here, job, show, detach=detach))
