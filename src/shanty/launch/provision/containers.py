"""Prepares what ranks find in the containers of a run: MPI, Python packages, the agents' Python.

A container is to a host what a host is to this machine: an RPC server is started in a container
for the run, and does there all that it does on hosts. What shanty keeps on a host is mounted at
the same path, so what is brought for one container is there for all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.containers import images
from shanty.launch.containers.images import Ask, Image, ImagesHere
from shanty.launch.content import content_store, environment
from shanty.launch.surroundings import Surroundings
from shanty.launch.transport.connection import Connection, Process
from shanty.launch.transport.parallel import Progress, Say, side_by_side
from shanty.launch.transport.rpc_client import NoAnswerError, RpcClient
from shanty.runtime.containers.container import ARTIFACTS, Container, Mount
from shanty.runtime.containers.engine_errors import explained
from shanty.runtime.containers.engines import ENGINES, environ_of, wrapped
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec

_REMOVAL = 20.0  # seconds for an engine's command to remove its container
_PATIENCE = 60.0  # seconds for a container to start
# What comes with an interpreter: an image that has no more was not chosen for its packages.
_PLAIN = {"pip", "setuptools", "wheel", "distlib", "packaging", "python-apt", "shanty"}


class _ContainerConnection:
    """Starts processes on a host, each in a container of its own."""

    def __init__(self, host: Host, outside: Connection, container: Container) -> None:
        self.host = host
        self._outside = outside
        self._container = container

    def start(self, argv: Sequence[str]) -> Process:
        """Start `argv` in a container, which ends with it."""
        name = f"shanty-prepare-{os.getpid()}-{os.urandom(4).hex()}"
        run = f"{self._container.environment['SHANTY_HOME']}/{name}"  # by which a sweep finds it
        # Nothing computes here, and a login node may lack the GPUs that were asked for.
        mounts = tuple(each for each in self._container.mounts if each.source != ARTIFACTS)
        container = self._container._replace(name=name, run=run, gpus="", mounts=mounts)
        # The command starts on the host. Its variables go along, and none of them is secret;
        # those of this machine stay here.
        values = environ_of(container._replace(variables=()))
        assigned = [f"{name}={value}" for name, value in values.items()]
        before = ["env", *assigned] if assigned else []
        return self._outside.start([*before, *wrapped(container, argv)])

    def close(self) -> None:
        """Do nothing: no connection is kept."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A container of the run's image on one host, and a client in it.

    `bare` says that the image has no Python, so that a copy of the host's serves. `search_path` is
    the image's PATH, `host_python` the Python outside.
    """

    image: Image
    container: Container
    client: RpcClient
    host_python: str
    search_path: str
    bare: bool

    def leave(self) -> None:
        """Let the container end; the run need not wait until the engine has removed it."""
        threading.Thread(target=self.client.close, args=(_REMOVAL,)).start()


def enter(
    name: str,
    connection: Connection,
    ask: Ask,
    image: Image,
    mounts: Sequence[str],
    host_python: str,
) -> Inside:
    """Start a container of the image on the host `name` and have it served.

    `mounts` are folders of the host: where shanty keeps all, and where the ranks work.
    """
    folders = tuple(Mount(path, path) for path in _outermost(mounts))
    container = image.container._replace(mounts=(*folders, *image.container.mounts))
    inside = _ContainerConnection(Host(f"{name} (image {image.name})"), connection, container)
    bare = False
    try:
        try:
            client = RpcClient.connect(inside, patience=_PATIENCE)
        except NoAnswerError as error:
            if error.kind != "python":
                raise
            bare = True
            python = str(ask("python-anywhere")["python"])
            client = RpcClient.connect(inside, pythons=[python], patience=_PATIENCE)
    except NoAnswerError as error:
        why, fix = explained(error.text)
        raise PrepareError(
            f"{ENGINES[container.engine].title} cannot start a container of {image.name} on {name}",
            why or f"the process that was started in it does not answer ({error.kind})",
            fix or "see whether the image runs at all; it needs /bin/sh",
        ) from None
    seen = client.ask("survey").values
    return Inside(image, container, client, host_python, str(seen["path"]), bare)


def enter_all(job: JobSpec, clients: Sequence[RpcClient], here: Surroundings) -> list[Inside]:
    """A container of the job's image on every host, in their order; none without an image.

    The first is on the lead host. A host that lacks the image gets it from this machine, if that
    has it, unless nothing may be brought.
    """
    if job.image is None:
        return []
    environ = {**here.environ, **job.env}
    own = ImagesHere(job, here.home, environ)

    def enter_one(client: RpcClient) -> Inside:
        name, image = client.host.name, job.image or ""
        if client is clients[0]:
            image = job.master_image or image

        def ask(verb: str, **args: Any) -> dict[str, Any]:
            return client.ask(verb, **args).values

        def told(text: str) -> None:
            here.say(f"{name}: {text}")

        asked = ask if here.brings else images.looking(ask, image)
        found = images.get(asked, job, image, environ, told, own)
        told(f"looks into {image}")
        return enter(name, client.connection, ask, found, [client.home], client.python)

    entered = side_by_side(clients, enter_one)
    return [entered[client.host.name] for client in clients]


def _outermost(folders: Sequence[str]) -> list[str]:
    """The folders that are not inside of another one."""
    normal = list(dict.fromkeys(map(os.path.normpath, folders)))
    return [
        one for one in normal if not any(o != one and Path(one).is_relative_to(o) for o in normal)
    ]


def own_mpis(insides: Sequence[Inside]) -> list[Installation]:
    """The MPI of each container's image; PrepareError where one has none, or they differ."""
    found = {
        inside.image.name: mpi_of_image(inside.image.name, inside.client) for inside in insides
    }
    titles = {name: f"{FLAVOURS[one.flavour].title} {one.version}" for name, one in found.items()}
    if len(set(titles.values())) > 1:
        raise PrepareError(
            "the images of the run have different MPIs",
            ", ".join(f"{name} has {title}" for name, title in titles.items()),
            "take images with one MPI, or leave --mpi out: shanty brings one along",
        )
    return [found[inside.image.name] for inside in insides]


def mpi_of_image(image: str, client: RpcClient) -> Installation:
    """The MPI that an image has, by a client in a container of it; PrepareError for none."""
    nothing: dict[str, Any] = {"launcher": "", "flavour": "", "version": ""}
    there = client.ask("mpi-find", **nothing).values["there"]
    own = [Installation(**one) for one in there if one["origin"] != "shanty"]
    if not own:
        raise PrepareError(
            f"the image {image} has no MPI",
            "--mpi image, or a manifest of an MPIJob, takes the MPI in the image",
            "give --mpi openmpi: shanty brings that along; or name another image",
        )
    return own[0]


def refuse_system(installation: Installation) -> None:
    """PrepareError for an MPI of this machine that cannot be brought into a container."""
    if installation.origin == "system":
        title = f"{FLAVOURS[installation.flavour].title} {installation.version}"
        raise PrepareError(
            f"{title} of this machine cannot be brought into a container",
            f"it is a system package ({installation.prefix}) and needs other system packages",
            f"--mpi image takes the image's own; shanty mpi install {installation.flavour} gets "
            "a copy that can be brought",
        )


def place_mpi(
    clients: Sequence[RpcClient], installation: Installation, home: Path, told: Progress
) -> dict[str, Installation]:
    """Put an MPI of this machine into containers; PrepareError where it cannot be brought."""
    refuse_system(installation)
    try:
        return content_store.place_mpi(clients, installation, home, told)
    except PrepareError as error:
        fix = "--mpi image takes the image's own MPI, if it has one"
        raise PrepareError(error.what, error.why, fix) from error


def fitting_mode(clients: Sequence[RpcClient], here: environment.Environment, say: Say) -> str:
    """Take an image's packages as they are where it has any, since it was chosen for these."""
    for name, each in environment.check(clients, here).items():
        own = [one.name for one in each.there.packages if one.name not in _PLAIN]
        if own:
            count = f"{len(own)} Python packages" if len(own) > 1 else f"the package {own[0]}"
            say(f"{name}: ranks get {count} of its own; --packages sync brings the local packages")
            return "none"
        if each.there.key != here.key:
            say(
                f"{name}: ranks get its Python {each.there.key}; the local packages are for "
                f"Python {here.key}"
            )
            return "none"
    return "sync"
