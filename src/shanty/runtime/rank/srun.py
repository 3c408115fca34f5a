"""Becomes the user's own srun in a run: its tasks are ranks, and start as all ranks do."""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import shutil
from typing import Dict, List, Optional, Sequence

from shanty.runtime import foreign_variables
from shanty.runtime.errors import UsageError
from shanty.runtime.lines import srun_line
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Plan
from shanty.runtime.rank import redirect
from shanty.runtime.rank_start import rank_prefix

ALLOCATION = "SHANTY_SLURM"  # the job's variables as JSON, which launchers do not see
# srun's variables for a task bypass the script of its host, which sets the host's own.
_PLACE = (
    'SHANTY_STEP="$SLURM_PROCID $SLURM_NTASKS $SLURM_LOCALID $SLURM_NODEID '
    '$SLURM_STEP_TASKS_PER_NODE"; export SHANTY_STEP; exec "$@"'
)
_INTEL = "I_MPI_PMI_LIBRARY"  # without it Intel MPI knows no PMI but its own


def fitting(flavour: Flavour, types: Sequence[str]) -> str:
    """Return the first kind of PMI that both srun and this MPI support; "" for none."""
    return next((each for each in flavour.pmi if each in types), "")


def become(plan: Plan, words: List[str]) -> None:
    """Become srun; UsageError where it is not installed."""
    line = srun_line.parse(words)
    own = os.path.join(plan.lead.run_dir, "bin")
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    real = shutil.which("srun", path=os.pathsep.join(each for each in path if each != own))
    if real is None:
        raise UsageError(
            "srun is not on PATH", "it belongs to Slurm", "leave it out: shanty starts the ranks"
        )
    flavour = FLAVOURS[plan.lead.installation.flavour]
    passed = redirect.offer_output(redirect.redirected(os.environ.get("SHANTY_OUTPUT", "")))
    scratch = plan.scratch if plan.scripted else ""
    prefix = rank_prefix(plan.lead.boot, scratch, str(os.getpid()), passed)
    more = [] if line.shares else ["--overlap"]
    if not line.mpi and flavour.pmi:
        more.append(f"--mpi={flavour.pmi[0]}")
    argv = [real, *more, *line.options, "/bin/sh", "-c", _PLACE, "sh", *prefix, *line.program]
    environ = {**os.environ, **_of_job(), "SHANTY_WORLD": str(os.getpid()), redirect.OUTPUT: passed}
    library = _pmi_library() if flavour.name == "intel" and _INTEL not in environ else None
    if library:
        environ[_INTEL] = library
    os.execve(real, argv, environ)


def _of_job() -> Dict[str, str]:
    """Return the variables of the current job, by which srun finds it."""
    with contextlib.suppress(ValueError, AttributeError):
        known = json.loads(os.environ.get(ALLOCATION, "{}"))
        return {name: str(value) for name, value in known.items()}
    return foreign_variables.of_allocation(os.environ)


def _pmi_library() -> Optional[str]:
    """Return Slurm's library of PMI-2, if it is installed."""
    return ctypes.util.find_library("pmi2")
