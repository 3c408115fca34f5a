"""Prepares what ranks find in the containers of a run: MPI, Python packages, the agents' Python.

A container is to a host what a host is to this machine: an RPC server is started in one that is
made for it, and does there all that it does on hosts. What shanty keeps on a host is mounted at
the same path, so what is brought for one container is there for all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shanty.launch.cluster import content_store, environment
from shanty.launch.cluster.parallel import Progress, Say, Step, side_by_side
from shanty.launch.cluster.prepare import environments
from shanty.launch.cluster.rpc_client import NoAnswerError, RpcClient
from shanty.launch.connections.base import Connection, Process
from shanty.launch.containers import images
from shanty.launch.containers.images import Ask, Image
from shanty.launch.containers.travel import ImagesHere
from shanty.launch.host import Host
from shanty.runtime.containers.container import ARTIFACTS, Container, Mount, container_name
from shanty.runtime.containers.engines import ENGINES, environ_of, wrapped
from shanty.runtime.containers.words import explained
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node
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
        # The command starts on the host. What is to be set for it goes along, and is no secret;
        # the variables of this machine are not meant.
        values = environ_of(container._replace(variables=()))
        assigned = [f"{name}={value}" for name, value in values.items()]
        before = ["env", *assigned] if assigned else []
        return self._outside.start([*before, *wrapped(container, argv)])

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A container of the run's image on one host, with somebody in it to ask.

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
            f"{ENGINES[container.engine].title} starts no container of {image.name} on {name}",
            why or f"what was started in it says nothing ({error.kind})",
            fix or "see whether the image runs at all; it needs /bin/sh",
        ) from None
    seen = client.ask("survey").values
    return Inside(image, container, client, host_python, str(seen["path"]), bare)


def enter_all(
    job: JobSpec,
    clients: Sequence[RpcClient],
    home: Path,
    environ: Mapping[str, str],
    say: Say,
    *,
    brings: bool = True,
) -> list[Inside]:
    """A container of the job's image on every host, in their order; the first is the lead host.

    A host that lacks the image gets it from this machine, if that has it, unless nothing may be
    brought. `home` is shanty's here.
    """
    own = ImagesHere(job, home, environ)

    def enter_one(client: RpcClient) -> Inside:
        name, image = client.host.name, job.image or ""
        if client is clients[0]:
            image = job.master_image or image

        def ask(verb: str, **args: Any) -> dict[str, Any]:
            return client.ask(verb, **args).values

        def told(text: str) -> None:
            say(f"{name}: {text}")

        asked = ask if brings else images.looking(ask, image)
        found = images.get(asked, job, image, environ, told, own)
        told(f"looks into {image}")
        return enter(name, client.connection, ask, found, [client.home], client.python)

    entered = side_by_side(clients, enter_one)
    return [entered[client.host.name] for client in clients]


def _outermost(folders: Sequence[str]) -> list[str]:
    """Those of the folders that are in no other one."""
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
            "--mpi image takes the one that is in the image",
            "leave --mpi out: shanty brings Open MPI along; or name another one",
        )
    return own[0]


@dataclass(frozen=True, slots=True)
class Contained:
    """All that a node of the plan has to know of its container.

    Paths are those inside; `agent_python` runs the agents there, `package` has their code.
    """

    container: Container
    installation: Installation
    python: str
    mpi4py: str
    agent_python: str
    host_python: str
    package: str
    search_path: str

    def node(self, node: Node) -> Node:
        """The host of a run, with its container."""
        name = container_name(Path(node.run_dir))
        container = self.container._replace(name=name, run=node.run_dir)
        return node._replace(
            container=container._asdict(),
            host_python=self.host_python,
            mpi=asdict(self.installation),
            python=self.python,
            mpi4py=self.mpi4py,
            agent_python=self.agent_python,
            package=self.package,
            search_path=self.search_path,
        )


def equip(
    insides: Sequence[Inside],
    installations: Installation | Sequence[Installation],
    python: str,
    mode: str | None,
    home: Path,
    environ: Mapping[str, str],
    say: Say,
) -> list[Contained]:
    """Put the MPI and the Python packages of a run into its containers, in their order.

    See `furnish`.
    """
    clients = [inside.client for inside in insides]
    bare = [inside.client.host.name for inside in insides if inside.bare]
    furnished = furnish(clients, installations, python, mode, home, environ, say, bare)
    return [
        Contained(
            inside.container,
            one.installation,
            one.python,
            one.mpi4py,
            inside.client.python,
            inside.host_python,
            inside.client.root,
            inside.search_path,
        )
        for inside, one in zip(insides, furnished, strict=True)
    ]


class Furnished(NamedTuple):
    """What ranks find in a container; `python` is "" where the image has none."""

    installation: Installation
    python: str
    mpi4py: str


def furnish(
    clients: Sequence[RpcClient],
    installations: Installation | Sequence[Installation],
    python: str,
    mode: str | None,
    home: Path,
    environ: Mapping[str, str],
    say: Say,
    bare: Collection[str] = (),
) -> list[Furnished]:
    """Put the MPI and the Python packages of a run into the containers of these clients.

    `installations` is the MPI to bring, or those that the images have. `mode` is as for hosts, but
    None takes the image's packages as they are, where it has any. `bare` are the names of clients
    in images without Python.
    """

    def told(step: Step) -> None:
        say(str(step))

    if isinstance(installations, Installation):
        placed = _place_mpi(clients, installations, home, told)
        installations = [placed[client.host.name] for client in clients]
    others = [client for client in clients if client.host.name not in bare]
    pythons: Mapping[str, str] = {}
    mpi4py: Mapping[str, str] = {}
    if others:
        here = environment.local_environment(python, home)
        mode = mode or _fitting_mode(others, here, say)
        pythons, mpi4py = environments(others, here, mode, home, environ, told, say)
    names = [client.host.name for client in clients]
    return [
        Furnished(installation, pythons.get(name, ""), mpi4py.get(name, ""))
        for name, installation in zip(names, installations, strict=True)
    ]


def refuse_system(installation: Installation) -> None:
    """PrepareError for an MPI of this machine that cannot be brought into a container."""
    if installation.origin == "system":
        title = f"{FLAVOURS[installation.flavour].title} {installation.version}"
        raise PrepareError(
            f"{title} of this machine cannot be brought into a container",
            f"it is a package of the system ({installation.prefix}), and needs others of it",
            f"--mpi image takes the image's own; shanty mpi install {installation.flavour} gets "
            "one that can be brought",
        )


def _place_mpi(
    clients: Sequence[RpcClient], installation: Installation, home: Path, told: Progress
) -> dict[str, Installation]:
    refuse_system(installation)
    try:
        return content_store.place_mpi(clients, installation, home, told)
    except PrepareError as error:
        fix = "--mpi image takes the image's own MPI, if it has one"
        raise PrepareError(error.what, error.why, fix) from error


def _fitting_mode(clients: Sequence[RpcClient], here: environment.Environment, say: Say) -> str:
    """Take an image's packages as they are where it has any, since it was chosen for these."""
    for name, each in environment.check(clients, here).items():
        own = [one.name for one in each.there.packages if one.name not in _PLAIN]
        if own:
            count = f"{len(own)} Python packages" if len(own) > 1 else f"the package {own[0]}"
            say(f"{name}: ranks get {count} of its own; --env sync brings those of here")
            return "none"
        if each.there.key != here.key:
            say(
                f"{name}: ranks get its Python {each.there.key}, for which the packages of here "
                f"(Python {here.key}) cannot be brought"
            )
            return "none"
    return "sync"
