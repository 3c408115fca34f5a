"""Stands in for mpirun and other launchers inside a run, so that a line in any dialect works.

The shim on PATH calls `boot.py rank.shim NAME PLAN ARGS…`. The line is translated for the
run's MPI, every program in it gets `rank.exec` put before it, and the real launcher takes this
process's place: its pid is the name of the world that it starts.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any, List, Mapping, Optional, Tuple

from shanty.runtime.errors import ShantyError, UsageError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.mpi.translate import decided_by, translate
from shanty.runtime.plan import Plan, addresses_by_name, read_plan
from shanty.runtime.rank import redirect
from shanty.runtime.rank.command import NO_MPI, become_next, launcher_of
from shanty.runtime.rank_start import rank_prefix
from shanty.runtime.rundir import RunDir


def main(argv: List[str]) -> int:
    """Become the real launcher; returns where that cannot be, or the line starts nothing."""
    name, plan_file, *words = argv
    try:
        _become(name, plan_file, words)
    except ShantyError as error:
        print(f"shanty: {name}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"shanty: {name}: {error.strerror}: {error.filename}", file=sys.stderr)
        return 127
    return 0


def _become(name: str, plan_file: str, words: List[str]) -> None:
    from pathlib import Path

    plan = read_plan(RunDir(Path(plan_file).parent))
    if plan is None:
        raise UsageError(f"{plan_file} is missing or damaged", fix="run it again")
    if name == "srun":
        from shanty.runtime.rank import srun

        srun.become(plan, words)
        return
    installation, layout = plan.lead.installation, plan.attempt.layout
    notes: List[str] = []
    verbose = False
    if name in ("horovodrun", "dmlc-submit"):
        from shanty.runtime.rank import dmlc_submit, horovodrun

        program: Any = horovodrun if name == "horovodrun" else dmlc_submit
        wanted = program.parse(words)
        text = program.answer(wanted, plan.lead.python)
        if text:
            print(text)
            return
        words = program.mpirun_line(wanted, layout, os.environ)
        os.environ.update(wanted.variables)
        notes, verbose = wanted.notes, wanted.verbose
    elif name == "mlx.launch":
        from shanty.runtime.rank import mlx_launch

        line = mlx_launch.parse(words)
        if line is None:
            become_next(name, words, os.path.join(os.path.dirname(plan_file), "bin"))
            raise UsageError(
                f"there is no {name} on PATH",
                "shanty knows its lines for MPI; for others it has to be installed",
                "install mlx, or say --backend mpi",
            )
        words, verbose = mlx_launch.mpirun_line(line, layout), line.verbose
    elif name in NO_MPI:
        line_and_notes = _of_processes(name, words, plan, layout)
        if line_and_notes is None:
            return
        words, notes = line_and_notes
    decided = decided_by(words, FLAVOURS[installation.flavour])
    passed = redirect.offer_output(redirect.redirected(os.environ.get("SHANTY_OUTPUT", "")))
    scratch = plan.scratch if plan.scripted else ""
    prefix = rank_prefix(plan.lead.boot, scratch, str(os.getpid()), passed, decided)
    if plan.scripted:
        for name in decided.difference(plan.lead.environment.own):  # those are the user's, too
            os.environ.pop(name, None)
    translation = translate(
        words,
        FLAVOURS[installation.flavour],
        layout,
        prefix=prefix,
        given_environment=os.environ,
        converted=f"{layout.hostfile}.{os.getpid()}",
        known=addresses_by_name(plan.attempt.nodes) if plan.workers else None,
    )
    for path, text in translation.files:
        Path(path).write_text(text)
    if verbose:
        notes.append(shlex.join([installation.launcher, *translation.argv]))
    for text in [*translation.notes, *notes]:
        print(f"shanty: {text}", file=sys.stderr)
    environ: Mapping[str, str] = {
        **os.environ,
        **translation.environment,
        "SHANTY_WORLD": str(os.getpid()),
        redirect.OUTPUT: passed,
    }
    kept = redirect.set_input_aside()
    if not translation.reads_input:
        environ = {**environ, redirect.INPUT: ""}
    elif kept is not None:
        environ = {**environ, redirect.INPUT: redirect.offer_input(kept)}
    sys.stderr.flush()
    os.execve(installation.launcher, [installation.launcher, *translation.argv], environ)


def _of_processes(
    name: str, words: List[str], plan: Plan, layout: Layout
) -> Optional[Tuple[List[str], List[str]]]:
    """Returns the line for mpirun of a launcher that knows no MPI, and what is to be said of it.

    None where the line only asks for help. Sets the variables for the ranks.
    """
    from shanty.runtime.gpus import visible_gpus
    from shanty.runtime.localhost import free_ports
    from shanty.runtime.rank import launchers

    found = launcher_of([name, *words])
    if found is None:  # a subcommand that starts no ranks
        become_next(name, words, f"{plan.lead.run_dir}/bin")
        raise UsageError(f"there is no {name} on PATH", fix="install it")
    line = launchers.parse(*found[:2])
    text = launchers.answer(line)
    if text:
        print(text)
        return None
    python = os.environ.pop(launchers.INTERPRETER, "") or os.environ.get("PYTHON_EXEC", "")
    if os.path.dirname(python) in ("", os.path.dirname(plan.lead.python)):
        python = "python"  # every host has its own
    line.settle(plan.lead.python if python == "python" else python)
    words = launchers.mpirun_line(line, layout, python, visible_gpus)
    os.environ.update(line.variables)
    if len(layout.hosts) == 1:  # a script may start several at a time
        os.environ["MASTER_PORT"] = str(free_ports(1)[0])
    return words, line.notes
