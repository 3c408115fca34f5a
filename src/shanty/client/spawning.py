"""Finds out whether a script starts processes by MPI, without running it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from shanty.runtime.spec import JobSpec, Script

_CALLS = re.compile(rb"\.(Open_port|Spawn|Spawn_multiple|Accept|Connect)\(|\bMPIPoolExecutor\(")
_VARIABLE = "I_MPI_SPAWN"  # Intel MPI's: without it these calls crash, with it all is slower


def let_spawn(job: JobSpec) -> JobSpec:
    """Return `job` with Intel MPI's setting, if its script starts processes or opens ports.

    Where the user has set the variable, that counts. Other MPIs do not read it.
    """
    if not isinstance(job.command, Script) or job.mpi in ("openmpi", "mpich"):
        return job
    try:
        text = Path(job.workdir, job.command.path).read_bytes()
    except OSError:  # what starts the script says so
        return job
    if _VARIABLE in {**os.environ, **job.env} or b"mpi4py" not in text or not _CALLS.search(text):
        return job
    return replace(job, env={**job.env, _VARIABLE: "on"})
