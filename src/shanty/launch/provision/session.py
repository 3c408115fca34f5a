"""Connections to the hosts of a run while they are prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from shanty.launch.provision.containers import Inside
from shanty.launch.provision.node import HostPlace, Ready, node_of
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.plan import Node


@dataclass(frozen=True, slots=True)
class HostSession:
    """A host that can be asked, and the container on it in which the ranks will run, if any.

    `host` is None for this machine, where only the container has to be asked.
    """

    place: HostPlace
    survey: Mapping[str, Any]
    host: RpcClient | None
    inside: Inside | None = None

    @property
    def client(self) -> RpcClient:
        """The client where the ranks will run: in the container, or on the host."""
        client = self.host if self.inside is None else self.inside.client
        assert client is not None  # this machine is prepared for containers only
        return client

    @property
    def clients(self) -> list[RpcClient]:
        """The clients on the host and in its container."""
        outside = [] if self.host is None else [self.host]
        return outside if self.inside is None else [*outside, self.inside.client]

    def node(self, number: int, ready: Ready, run: str, scratch: str) -> Node:
        """The host `number` of the run `run`; `scratch` is the run's folder for temporary files."""
        assert self.host is not None  # this machine keeps a run in the run's own folder
        linux = self.survey["system"] == "Linux"
        return node_of(
            number,
            self.place,
            ready,
            str(PurePosixPath(self.host.home, "work", f"{run}.{number}")),
            f"/dev/shm/{PurePosixPath(scratch).name}" if linux else "",
            fabric=bool(self.survey["fabrics"]),
        )


def nodes_of(
    sessions: Sequence[HostSession], ready: Sequence[Ready], run: str, scratch: str
) -> list[Node]:
    """The hosts of the run `run`; `scratch` is its folder for temporary files."""
    return [
        session.node(number, there, run, scratch)
        for number, (session, there) in enumerate(zip(sessions, ready, strict=True))
    ]


def shared_out(surveys: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The cores that each host has for itself, by its name.

    Hosts that run under one kernel (containers, a lab) may each see all of its cores.
    """
    kernels: dict[str, list[Mapping[str, Any]]] = {}
    for name, survey in surveys.items():
        kernels.setdefault(survey["boot"] or name, []).append(survey)
    found = {}
    for name, survey in surveys.items():
        seen = sum(each["cores"] for each in kernels[survey["boot"] or name])
        own = survey["cores"] * survey["machine_cores"] // max(seen, survey["machine_cores"])
        found[name] = max(1, own)
    return found
