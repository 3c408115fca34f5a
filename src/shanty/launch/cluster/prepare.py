"""Puts the MPI of a run, its Python packages and its code on every host.

The three are independent, and each is sent only where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shanty.launch.cluster import content_store, environment, workspace
from shanty.launch.cluster.parallel import Progress, Say, Step
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Prepared:
    """The places of all on one host; `mpi4py` is "FOLDER|CACHE_TAG", "" where none was brought."""

    installation: Installation
    python: str
    workdir: str
    mpi4py: str


def prepare(
    clients: Sequence[RpcClient],
    installation: Installation,
    python: str,
    job: JobSpec,
    users: Mapping[str, str],
    home: Path,
    environ: Mapping[str, str],
    say: Say,
) -> list[Prepared]:
    """Prepare all hosts, in the RPC clients' order.

    `python` is the job's interpreter here. `users` gives, by the host's name, the name (RUN.INDEX)
    under which it keeps the workspace. Raises PrepareError, with the host.
    """

    def told(step: Step) -> None:
        say(str(step))

    installations = content_store.place_mpi(clients, installation, home, told)
    here = environment.local_environment(python, home)
    pythons, mpi4py = environments(clients, here, job.environment, home, environ, told, say)
    placed = place_workspace(clients, job, users, home, say)
    return [
        Prepared(
            installations[client.host.name],
            pythons[client.host.name],
            placed[client.host.name],
            mpi4py.get(client.host.name, ""),
        )
        for client in clients
    ]


def place_workspace(
    clients: Sequence[RpcClient], job: JobSpec, users: Mapping[str, str], home: Path, say: Say
) -> dict[str, str]:
    """Put a job's workspace on all hosts; where it is there, by their names."""
    folder = Path(job.workdir)
    return workspace.place(
        clients, folder, lambda step: say(str(step)),
        cache=workspace.cache_file(folder, home), users=users, say=say,
        inputs=None if job.inputs is None else Path(job.inputs),
    )[1]  # fmt: skip


def environments(
    clients: Sequence[RpcClient],
    here: environment.Environment,
    mode: str | None,
    home: Path,
    environ: Mapping[str, str],
    told: Progress,
    say: Say,
) -> tuple[dict[str, str], dict[str, str]]:
    """The interpreters of the ranks, and what is brought of mpi4py, by the hosts' names.

    `mode` is check, sync, none or None (check, and sync where that finds a difference).
    """

    def made() -> tuple[dict[str, str], dict[str, str]]:
        pythons = environment.sync(clients, here, home, told, environ)
        return pythons, environment.place_mpi4py_beside(clients, here, home, told)

    if mode == "sync":
        return made()
    differences = environment.check(clients, here, environment.mpi4py_tags())
    different = {name: each for name, each in differences.items() if each.rows}
    if different and mode is None:
        count = len({row.name for each in different.values() for row in each.rows})
        packages = "1 package differs" if count == 1 else f"{count} packages differ"
        hosts = next(iter(different)) if len(different) == 1 else f"{len(different)} hosts"
        say(f"{packages} on {hosts}: the ranks get the environment of {here.python}")
        return made()
    if different and mode == "check":
        raise PrepareError(
            f"the Python environment is another one on {', '.join(different)}",
            "\n       " + environment.table(different).replace("\n", "\n       "),
            "--env sync makes the same one there, --env none takes what is there",
        )
    _note_mpi4py(clients, differences)
    pythons = {name: each.there.python for name, each in differences.items()}
    return pythons, environment.place_mpi4py(clients, differences, home, told)


def _note_mpi4py(
    clients: Sequence[RpcClient], differences: Mapping[str, environment.Differences]
) -> None:
    """Note where mpi4py is another one than on the lead host: objects of the one break the other.

    MPI's own calls do not mind; `allreduce` of Python objects ends with MPI_ERR_TRUNCATE.
    """
    versions = {name: environment.mpi4py_version(each.there) for name, each in differences.items()}
    first = clients[0].host.name
    for client in clients[1:]:
        own = versions[client.host.name]
        if own and versions[first] and own != versions[first]:
            what = f"mpi4py is {own} here and {versions[first]} on {first}"
            client.notes.append((f"{what}, so ranks may not read each other's objects",
                                 "--env sync brings one to all"))  # fmt: skip
