"""Checks this machine: before a run on it, and for `shanty doctor`.

A run here starts in less time than the checks take to import, so they are imported where used.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shanty.runtime import platform
from shanty.runtime.errors import NotFoundError, PrepareError
from shanty.runtime.gpus import gpus
from shanty.runtime.rpc import capacity
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from shanty.launch.finding import Finding
    from shanty.runtime.mpi.installation import Installation

_PLENTY = 64 << 20  # bytes in /dev/shm: more than a few ranks need
_BEFORE_RUN = ("tmp-full", "shm-full", "shm-small", "memory-short", "memory-limit")
# What matters on a machine that starts runs but holds no ranks: it stores the runs.
_OF_THE_START = ("home-readonly", "disk-full", "inodes-full")


def check_before_run(
    job: JobSpec, home: Path, environ: Mapping[str, str], warn: Callable[[str], None]
) -> None:
    """Checks two folders, and the rest only if these are nearly full; FoundError for errors."""
    tmp = capacity.folder("/tmp")
    shared = capacity.folder(platform.SHARED_MEMORY) if platform.SHARED_MEMORY else {}
    little = shared.get("free", _PLENTY) < _PLENTY
    if not (tmp["error"] or shared.get("error") or little or job.memory_per_rank):
        return
    from shanty.launch.finding import tell

    found = findings(job, home, environ, holds_ranks=True)
    tell([each for each in found if each.code in _BEFORE_RUN], warn)


def check_capacity(job: JobSpec, ranks: int) -> None:
    """Checks that `ranks` fit here with their memory and GPUs; PrepareError where they do not."""
    from shanty.launch.doctor.facts import HERE, Need, Seen
    from shanty.launch.doctor.hosts import of_capacity
    from shanty.launch.finding import tell

    facts = {
        "memory": platform.usable_memory(),
        "gpus": gpus() if job.gpus_per_rank else [],
        "cores": platform.usable_cores(),
        "machine_cores": platform.usable_cores(),
        "room": {"available": capacity.available()},
    }
    need = Need({"": ranks}, job.memory_per_rank or 0, job.gpus_per_rank or 0, oversubscribe=True)
    tell(list(of_capacity(Seen(HERE, facts, {}), need)), lambda _warning: None)


def findings(
    job: JobSpec, home: Path, environ: Mapping[str, str], *, holds_ranks: bool
) -> list[Finding]:
    """Finds problems of this machine; `holds_ranks` where ranks of the job run on it."""
    from shanty.launch.doctor.facts import HERE, Seen, need_of
    from shanty.launch.doctor.hosts import of_host
    from shanty.runtime.rpc import health, survey

    nobody: tuple[Any, ...] = ({}, io.BytesIO(), lambda _progress: None)
    facts = survey.survey(*nobody)
    seen = Seen(HERE, facts, health.health(*nobody))
    installation, found = _mpi(job, home, {**environ, **job.env})
    need = need_of(job, [HERE] if holds_ranks else [], {"": facts}, installation)
    own = of_host(seen, need)
    return found + [each for each in own if holds_ranks or each.code in _OF_THE_START]


def _mpi(
    job: JobSpec, home: Path, environ: Mapping[str, str]
) -> tuple[Installation | None, list[Finding]]:
    """Returns the MPI of the job, and findings where it is missing or damaged."""
    from shanty.launch import interpreter, mpis
    from shanty.launch.finding import Finding, Level
    from shanty.runtime.mpi import detect

    try:
        taken = mpis.select(job.mpi, home, environ)
    except (NotFoundError, PrepareError) as error:
        code = "mpi-missing" if isinstance(error, NotFoundError) else "mpi-clobbered"
        return None, [Finding(code, Level.ERROR, "", error.what, error.why, error.fix)]
    python = interpreter.choose(job.python, Path(job.workdir), environ)
    prefixes = dict.fromkeys([*detect.wheel_prefixes(), str(Path(python).parents[1])])
    return taken, [
        Finding(
            "mpi-clobbered",
            Level.WARNING,
            "",
            f"the MPIs in {prefix} have overwritten each other",
            damage,
            "shanty uses an undamaged MPI; for other programs, keep only one of them there",
        )
        for prefix in prefixes
        if (damage := detect.clobbered(prefix)) is not None
    ]
