"""Describes a host of a run for its agents: the only place where a plan's nodes are made."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from shanty.runtime.containers.container import Container, container_name
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node


class HostPlace(NamedTuple):
    """What a target decides about a host; the fields are as in `Node`."""

    name: str
    address: str
    slots: int
    cores: int
    names: tuple[str, ...] = ()
    connection: dict[str, Any] = {}  # noqa: RUF012  never changed
    interfaces: tuple[tuple[str, str], ...] = ()
    limit: str = ""
    gpus: bool = False


class Ready(NamedTuple):
    """What a run finds on a host that is prepared; the fields are as in `Node`.

    Where the host has a container for the run, the paths are those inside.
    """

    installation: Installation
    python: str
    mpi4py: str
    workdir: str
    agent_python: str
    package: str
    search_path: str
    container: Container | None = None
    host_python: str = ""


def node_of(
    number: int, place: HostPlace, ready: Ready, run_dir: str, segments: str, *, fabric: bool = True
) -> Node:
    """The host `number` of a run, whose folder there is `run_dir`.

    `segments` and `fabric` are as in `Node`.
    """
    container: dict[str, Any] = {}
    if ready.container is not None:
        name = container_name(Path(run_dir))
        container = ready.container._replace(name=name, run=run_dir)._asdict()
    return Node(
        number=number,
        run_dir=run_dir,
        workdir=ready.workdir,
        python=ready.python,
        agent_python=ready.agent_python,
        package=ready.package,
        mpi=asdict(ready.installation),
        search_path=ready.search_path,
        mpi4py=ready.mpi4py,
        segments=segments,
        fabric=fabric,
        container=container,
        host_python=ready.host_python,
        **place._asdict(),
    )
