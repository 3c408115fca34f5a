"""Stands in for mpirun and other launchers inside a run, so that a line in any dialect works.

The shim on PATH calls `boot.py rank.shim NAME PLAN ARGS…`. The line is translated for the
run's MPI, every program in it gets `rank.exec` put before it, and the real launcher takes this
process's place: its pid is the name of the world that it starts.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import List, Mapping

from shanty.runtime.errors import ShantyError, UsageError
from shanty.runtime.lines.command import INTERPRETER, NO_MPI, become_next
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.translate import decided_by, translate
from shanty.runtime.plan import addresses_by_name, read_plan
from shanty.runtime.rank import redirect
from shanty.runtime.rank_start import rank_prefix
from shanty.runtime.rundir import RunDir

# The launchers whose lines become lines for mpirun.
_OTHERS = ("horovodrun", "dmlc-submit", "mlx.launch", *NO_MPI)


def main(argv: List[str]) -> int:
    """Become the real launcher; returns where that fails, or the line starts nothing."""
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
    if name in _OTHERS:
        from shanty.runtime.lines import launchers

        line = launchers.parse_in_run(name, words)
        if line is None:
            become_next(name, words, os.path.join(plan.lead.run_dir, "bin"))
            fix = "install mlx, or say --backend mpi" if name == "mlx.launch" else "install it"
            raise UsageError(f"{name} is not on PATH, and this line is for it", fix=fix)
        text = line.answer(plan.lead.python)
        if text:
            print(text)
            return
        words = line.mpirun_line(layout, os.environ, plan.lead.python)
        os.environ.update(line.variables)
        os.environ.pop(INTERPRETER, None)
        notes, verbose = line.notes, line.verbose
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
