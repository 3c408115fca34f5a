"""This machine: the MPI that runs take from it, and, where it holds ranks, all that a host is."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shanty.launch import interpreter, mpis
from shanty.launch.doctor import hosts, needs
from shanty.launch.doctor.facts import Seen
from shanty.launch.doctor.needs import HERE
from shanty.launch.finding import Finding, Level
from shanty.runtime.errors import NotFoundError, PrepareError
from shanty.runtime.mpi import detect
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rpc import survey
from shanty.runtime.spec import JobSpec

# What matters on a machine that starts runs but holds no ranks: they are written down here.
_OF_THE_START = ("home-readonly", "disk-full", "inodes-full")


def findings(
    job: JobSpec, home: Path, environ: Mapping[str, str], *, holds_ranks: bool
) -> list[Finding]:
    """What is wrong here; `holds_ranks` says that the job's ranks run on this machine."""
    installation, found = _mpi(job, home, {**environ, **job.env})
    seen = look()
    places = [HERE] if holds_ranks else []
    need = needs.of_job(job, places, {"": seen.survey}, installation)
    own = hosts.of_host(seen, need)
    return found + [each for each in own if holds_ranks or each.code in _OF_THE_START]


def look() -> Seen:
    """The facts about this machine, asked for without a RPC client."""
    from shanty.runtime.rpc import health

    def unheard(_said: Mapping[str, Any]) -> None:
        """Nobody waits for the progress of this."""

    nothing = io.BytesIO()
    facts = survey.survey({}, nothing, unheard)
    return Seen(HERE, facts, health.health({}, nothing, unheard))


def _mpi(
    job: JobSpec, home: Path, environ: Mapping[str, str]
) -> tuple[Installation | None, list[Finding]]:
    """The MPI that the job takes, and whether it is here, and whole."""
    try:
        taken = mpis.select(job.mpi, home, environ)
    except NotFoundError as error:
        return None, [_damaged("mpi-missing", Level.ERROR, error.what, error.why, error.fix)]
    except PrepareError as error:
        return None, [_damaged("mpi-clobbered", Level.ERROR, error.what, error.why, error.fix)]
    python = interpreter.choose(job.python, Path(job.workdir), environ)
    prefixes = dict.fromkeys([*detect.wheel_prefixes(), str(Path(python).parents[1])])
    return taken, [
        _damaged(
            "mpi-clobbered",
            Level.WARNING,
            f"the MPIs in {prefix} have overwritten each other",
            damage,
            "shanty takes a whole one; for other programs leave only one of them there",
        )
        for prefix in prefixes
        if (damage := detect.clobbered(prefix)) is not None
    ]


def _damaged(code: str, level: Level, what: str, why: str, fix: str) -> Finding:
    return Finding(code, level, "", what, why, fix)
