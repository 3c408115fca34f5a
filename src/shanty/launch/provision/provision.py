"""Puts the MPI of a run, its Python packages and its code on every host.

The three are independent. Each is sent only where it is missing. Where the ranks run in a
container, MPI and packages are those of the container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shanty.launch import interpreter, mpis
from shanty.launch.containers.options import IMAGE_MPI, refuse_without_python
from shanty.launch.content import content_store, environment, workspace
from shanty.launch.provision import containers
from shanty.launch.provision.node import Ready
from shanty.launch.provision.session import HostSession
from shanty.launch.surroundings import Surroundings
from shanty.launch.transport.parallel import Progress, Say, Step, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import JobSpec

_UNUSED = 30  # days after which a host gives up what no run has asked for


class Bring(NamedTuple):
    """What a run needs of this machine: its MPI, None for that of each image, and its Python."""

    installation: Installation | None
    python: str


def to_bring(job: JobSpec, here: Surroundings) -> Bring:
    """Find the MPI and the Python of a job; PrepareError or NotFoundError where one is missing."""
    environ = {**here.environ, **job.env}
    own = job.mpi == IMAGE_MPI
    installation = None if own else mpis.select(job.mpi, here.home, environ)
    return Bring(installation, interpreter.choose(job.python, Path(job.workdir), environ))


def provision(
    sessions: Sequence[HostSession], job: JobSpec, bring: Bring, run: str, here: Surroundings
) -> list[Ready]:
    """Prepare the hosts of the run with the id `run`, in their order.

    First removes what crashed runs have left there. PrepareError names the host that fails.
    """

    def told(step: Step) -> None:
        here.say(str(step))

    hosts = [session.host for session in sessions if session.host is not None]
    if hosts:
        contained = any(session.inside is not None for session in sessions)
        side_by_side(hosts, lambda client: _sweep(client, here.say, containers=contained))
    installations = _mpis(sessions, job, bring, here, told)
    pythons, mpi4py = _pythons(sessions, job, bring, here, told)
    placed = place_workspace(hosts, job, run, here.home, here.say) if hosts else {}
    ready = []
    for session, installation in zip(sessions, installations, strict=True):
        for client in session.clients:
            for what, fix in client.notes:
                here.warn(f"{client.host.name}: {what} ({fix})")
        client, entered = session.client, session.inside
        if entered is not None:
            entered.leave()
        ready.append(
            Ready(
                installation,
                pythons.get(client.host.name, ""),
                mpi4py.get(client.host.name, ""),
                placed.get(session.place.name, job.workdir),
                client.python,
                client.root,
                str(session.survey["path"]) if entered is None else entered.search_path,
                None if entered is None else entered.container,
                "" if entered is None else entered.host_python,
            )
        )
    if job.image is not None:
        refuse_without_python(job, [each.python for each in ready])
    return ready


def place_workspace(
    clients: Sequence[RpcClient], job: JobSpec, run: str, home: Path, say: Say
) -> dict[str, str]:
    """Put a job's workspace on all hosts of the run `run`; returns its folders, by host."""
    folder = Path(job.workdir)
    users = {client.host.name: f"{run}.{number}" for number, client in enumerate(clients)}
    return workspace.place(
        clients, folder, lambda step: say(str(step)),
        cache=workspace.cache_file(folder, home), users=users, say=say,
        inputs=None if job.inputs is None else Path(job.inputs),
    )[1]  # fmt: skip


def _sweep(client: RpcClient, say: Say, *, containers: bool) -> None:
    """End what runs that crashed have left on a host."""
    for run in client.ask("sweep-runs").values["swept"]:
        say(f"{client.host.name}: removed what run {run} left, which had crashed there")
    client.ask("sweep-keys")
    client.ask("store-sweep", days=_UNUSED)
    if containers:
        client.ask("containers-sweep")


def _mpis(
    sessions: Sequence[HostSession],
    job: JobSpec,
    bring: Bring,
    here: Surroundings,
    told: Progress,
) -> list[Installation]:
    """The MPI of each host: what is brought, or that of its image."""
    clients = [session.client for session in sessions]
    if bring.installation is None:
        insides = [session.inside for session in sessions if session.inside is not None]
        if insides:
            return containers.own_mpis(insides)
        own = containers.mpi_of_image(job.image or "", clients[0])  # of which all pods are
        return [own] * len(clients)
    place = content_store.place_mpi if job.image is None else containers.place_mpi
    placed = place(clients, bring.installation, here.home, told)
    return [placed[client.host.name] for client in clients]


def _pythons(
    sessions: Sequence[HostSession],
    job: JobSpec,
    bring: Bring,
    here: Surroundings,
    told: Progress,
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The interpreters of the ranks, and the mpi4py that is brought for them, by host.

    Both are empty where no container has a Python. `--packages` is check, sync, none or None:
    check, and sync where that finds a difference.
    """
    clients = [each.client for each in sessions if each.inside is None or not each.inside.bare]
    if not clients:
        return {}, {}
    own, mode = environment.local_environment(bring.python, here.home), job.packages
    if mode is None and job.image is not None:
        mode = containers.fitting_mode(clients, own, here.say)
    if mode != "sync":
        differences = environment.check(clients, own, environment.mpi4py_tags())
        different = {name: each for name, each in differences.items() if each.rows}
        if different and mode == "check":
            raise PrepareError(
                f"the Python environment differs on {', '.join(different)}",
                "\n       " + environment.table(different).replace("\n", "\n       "),
                "--packages sync copies it there, --packages none takes what is there",
            )
        if not different or mode == "none":
            _note_mpi4py(clients, differences)
            pythons = {name: each.there.python for name, each in differences.items()}
            return pythons, environment.place_mpi4py(clients, differences, here.home, told)
        count = len({row.name for each in different.values() for row in each.rows})
        packages = "1 package differs" if count == 1 else f"{count} packages differ"
        hosts = next(iter(different)) if len(different) == 1 else f"{len(different)} hosts"
        here.say(f"{packages} on {hosts}: the ranks get the environment of {own.python}")
    pythons = environment.sync(clients, own, here.home, told, here.environ)
    return pythons, environment.place_mpi4py_beside(clients, own, here.home, told)


def _note_mpi4py(
    clients: Sequence[RpcClient], differences: Mapping[str, environment.Differences]
) -> None:
    """Note where mpi4py differs from that of the lead host: they cannot exchange Python objects.

    MPI's own calls work; `allreduce` of Python objects ends with MPI_ERR_TRUNCATE.
    """
    versions = {name: environment.mpi4py_version(each.there) for name, each in differences.items()}
    first = clients[0].host.name
    for client in clients[1:]:
        own = versions[client.host.name]
        if own and versions[first] and own != versions[first]:
            what = f"mpi4py is {own} here and {versions[first]} on {first}"
            client.notes.append((f"{what}, so ranks may not read each other's objects",
                                 "--packages sync brings one to all"))  # fmt: skip
