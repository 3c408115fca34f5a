"""Logs in to hosts anew, for as long as an examination has time for it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from shanty.launch.cluster import contact
from shanty.launch.cluster.host import Host
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.cluster.ssh_errors import Refusal
from shanty.launch.connections.base import Connection
from shanty.launch.connections.openssh import FreshSSH, Route
from shanty.runtime.errors import PrepareError

_CONNECT = 5  # seconds in which a host has to answer
_LEAST = 2.0  # seconds without which none is begun with: a slow one would look like a dead one
_SILENT = 8.0  # seconds that one that was logged in to may say nothing
_WORD = 0.5  # seconds before the end at which silence is told from there being no time


class Reaching:
    """One attempt to reach hosts, until time.monotonic() is `until`.

    Afterwards `late` has the hosts that there was no time for: of those, nothing is known.
    """

    def __init__(self, until: float) -> None:
        self.late: list[Host] = []
        self._until = until
        self._lock = threading.Lock()
        self._open: dict[Host, subprocess.Popen[bytes]] = {}

    def attempt(self, hosts: Sequence[Host]) -> tuple[list[RpcClient], list[Refusal]]:
        """The RPC clients of those that were reached, and why the others were not."""
        end = threading.Timer(self.left, self._give_up)
        end.daemon = True
        end.start()
        try:
            outcomes = contact.attempt(
                hosts,
                terminal=False,
                progress=self._heard,
                connection=self._connection,
                patience=max(0.1, min(_SILENT, self.left - _WORD)),
            )
        finally:
            end.cancel()
        met = [each for each in outcomes if each.host not in self.late]
        for each in outcomes:
            if isinstance(each, RpcClient) and each.host in self.late:
                each.close(0.0)  # it was ended in the moment in which it came
        clients = [each for each in met if isinstance(each, RpcClient)]
        return clients, [each for each in met if isinstance(each, Refusal)]

    @property
    def left(self) -> float:
        """How many seconds are left."""
        return max(0.0, self._until - time.monotonic())

    def begin(self, host: Host) -> None:
        """Say that a host is about to be logged in to; PrepareError where it is too late."""
        if self.left < _LEAST:
            with self._lock:
                self.late.append(host)
            raise PrepareError(f"there is no time left to reach {host.name}")

    def watch(self, host: Host, process: subprocess.Popen[bytes]) -> None:
        """End that process at the end of the time, unless its host is ready then."""
        with self._lock:
            self._open[host] = process

    def _connection(self, host: Host) -> Connection:
        return contact.connection_to(host) if contact.is_here(host) else _Timely(host, self)

    def _heard(self, host: Host, text: str) -> None:
        if text == "ready":
            with self._lock:
                self._open.pop(host, None)

    def _give_up(self) -> None:
        with self._lock:
            for host, process in self._open.items():
                if process.poll() is None:
                    self.late.append(host)
                    process.kill()


class _Timely(FreshSSH):
    """A login of its own, begun in time: a connection of yesterday would hide today's fault."""

    def __init__(self, host: Host, reaching: Reaching) -> None:
        super().__init__(host, _CONNECT)
        self._reaching = reaching

    @cached_property
    def route(self) -> Route:
        """How the host is reached; asks ssh once."""
        self._reaching.begin(self.host)
        seconds = min(_CONNECT, int(self._reaching.left))
        return _sooner(super().route, seconds)

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `argv` there, if there is time."""
        self._reaching.begin(self.host)
        process = super().start(argv)
        self._reaching.watch(self.host, process)
        return process


def _sooner(route: Route, seconds: int) -> Route:
    """The same way, on which every machine has so many seconds to answer."""
    via = _sooner(route.via, seconds) if route.via is not None else None
    return replace(route, via=via, timeout=seconds)
