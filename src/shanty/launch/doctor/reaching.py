"""Logs in to hosts within a time limit, and finds out why some cannot be reached.

ssh says no more than that nothing came back. Whether the host is off, or behind a firewall, or
frozen, shows in what else of it answers: to this machine, and to its neighbours.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import starmap
from typing import Any

from shanty.launch.cluster import connect
from shanty.launch.cluster.connect import Refusal
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.connections.base import Connection
from shanty.launch.connections.openssh import FreshSSH, Route, resolved
from shanty.launch.finding import Finding, Level
from shanty.launch.host import Host
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.rpc.reachability import look

_CONNECT = 5  # seconds in which a host has to answer
_LEAST = 2.0  # seconds without which none is begun with: a slow one would look like a dead one
_SILENT = 8.0  # seconds that one that was logged in to may say nothing
_WORD = 0.5  # seconds before the end at which silence is told from there being no time
_LOOK = 2.5  # seconds that whoever looks at a host has
_WITNESSES = 3
_DOUBTFUL = ("host-unreachable", "host-silent", "ssh-dropped", "ssh-refused", "proxy-failed")
_HERE = ("key-open", "ssh-missing", "ssh-configuration")  # what is wrong at this end
_FIXABLE = ("password-needed", "host-key-unknown", "key-open")
# What is seen of the ssh port by others: the code, what it means, what to do. The first counts.
_SEEN: Mapping[str, tuple[str, str, str]] = {
    "mute": (
        "host-silent",
        "it takes connections, but its sshd says nothing",
        "the host may be frozen or overloaded: look at it by other means",
    ),
    "other": (
        "not-ssh",
        "what answers on that port is no ssh server",
        "give the port of its sshd (~/.ssh/config, or ssh://HOST:PORT)",
    ),
    "closes": (
        "ssh-dropped",
        "it drops the connection before the login",
        "its sshd may be overloaded (MaxStartups) or keep this address out: look at its log",
    ),
    "refused": (
        "ssh-refused",
        "it is up, but nothing listens for ssh there",
        "start sshd on it, or give its port (~/.ssh/config, or ssh://HOST:PORT)",
    ),
}
_FILTERED = (
    "ssh-filtered",
    "it is up, but its ssh port does not answer",
    "let its firewall pass TCP to that port",
)
_NOBODY = ("host-unreachable", "nothing answers there", "see whether it is up and on this network")
_PROXY = (
    "proxy-failed",
    "what its connection goes through (ProxyCommand) ends before the login",
    "see what its words in ~/.ssh/config do when they are run by hand",
)
_WORDS: Mapping[str, str] = {
    "ssh": "its sshd answers",
    "other": "no ssh server answers",
    "mute": "it takes the connection and says nothing",
    "closes": "it ends the connection at once",
    "refused": "it refuses the connection",
    "unreachable": "nobody has that address",
    "silent": "no answer",
    "unresolved": "the name does not resolve",
}


class Reaching:
    """Reaches hosts once, until time.monotonic() is `until`.

    Afterwards `late` has the hosts that there was no time for: of those, nothing is known.
    """

    def __init__(self, until: float) -> None:
        self.late: list[Host] = []
        self._until = until
        self._lock = threading.Lock()
        self._open: dict[Host, subprocess.Popen[bytes]] = {}

    def attempt(self, hosts: Sequence[Host]) -> tuple[list[RpcClient], list[Refusal]]:
        """Returns the RPC clients of the hosts that were reached, and why the others were not."""
        end = threading.Timer(self.left, self._give_up)
        end.daemon = True
        end.start()
        try:
            outcomes = connect.attempt(
                hosts,
                terminal=False,
                progress=self._heard,
                connection=self._connection,
                patience=max(0.1, min(_SILENT, self.left - _WORD)),
            )
        finally:
            end.cancel()
        clients, refused = [], []
        for each in outcomes:
            if isinstance(each, Refusal):
                refused.append(each)
            elif each.host in self.late:
                each.close(0.0)  # it was ended in the moment in which it came
            else:
                clients.append(each)
        return clients, [each for each in refused if each.host not in self.late]

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return max(0.0, self._until - time.monotonic())

    def begin(self, host: Host) -> None:
        """Checks that there is time to log in to a host; PrepareError where there is none."""
        if self.left < _LEAST:
            with self._lock:
                self.late.append(host)
            raise PrepareError(f"there is no time left to reach {host.name}")

    def watch(self, host: Host, process: subprocess.Popen[bytes]) -> None:
        """Ends that process at the end of the time, unless its host is ready then."""
        with self._lock:
            self._open[host] = process

    def _connection(self, host: Host) -> Connection:
        return connect.connection_to(host) if connect.is_here(host) else _LimitedSSH(host, self)

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


class _LimitedSSH(FreshSSH):
    """A new login, begun in time: an old connection would hide a new fault."""

    def __init__(self, host: Host, reaching: Reaching) -> None:
        super().__init__(host, _CONNECT)
        self._reaching = reaching

    @cached_property
    def route(self) -> Route:
        """The route to the host; ssh is asked once."""
        self._reaching.begin(self.host)
        return _with_timeout(super().route, min(_CONNECT, int(self._reaching.left)))

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts `argv` there, if there is time."""
        self._reaching.begin(self.host)
        process = super().start(argv)
        self._reaching.watch(self.host, process)
        return process


def _with_timeout(route: Route, seconds: int) -> Route:
    via = _with_timeout(route.via, seconds) if route.via is not None else None
    return replace(route, via=via, timeout=seconds)


def explain(refused: Sequence[Refusal], clients: Sequence[RpcClient] | None) -> list[Finding]:
    """Makes a finding for each host that was not reached; `clients` are on its neighbours, None
    where there is no time to ask. What is wrong at this end is one finding for all hosts."""
    at_this_end: dict[str, Finding] = {}
    others = []
    with ThreadPoolExecutor(len(refused) or 1) as pool:
        every = pool.map(lambda one: {} if clients is None else _views(one, clients), refused)
        for one, views in zip(refused, every, strict=True):
            code, what, fix = judged(one, views)
            found = Finding(
                code,
                Level.ERROR,
                "" if code in _HERE else one.host.name,
                what,
                "; ".join(filter(None, [one.detail, *starmap(_view_text, views.items())])),
                fix,
                one.command if code == one.code else "",
                fixable=code in _FIXABLE,
            )
            if code in _HERE:
                at_this_end.setdefault(code, found)
            else:
                others.append(found)
    return [*at_this_end.values(), *others]


def judged(refused: Refusal, views: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str]:
    """Returns the code, its meaning and what to do, by what others see of the host; pure."""
    ports = {str(view["port"]) for view in views.values()}
    if "ssh" in ports:
        # Where it is seen from here too, no ProxyCommand is on the way, which may lead elsewhere.
        if refused.code == "host-unreachable" and "" in views:
            return _FILTERED
        if refused.code == "ssh-dropped" and "" not in views:
            return _PROXY
    else:
        for port, verdict in _SEEN.items():
            if port in ports:
                return verdict
        if any(view["alive"] for view in views.values()):
            return _FILTERED
        if views and refused.code == "host-silent":  # so ssh calls it where it has a ProxyCommand
            return _NOBODY
    return refused.code, refused.what, refused.fix


def _views(refused: Refusal, clients: Sequence[RpcClient]) -> dict[str, dict[str, Any]]:
    """Asks this machine and some hosts what they see of a host, by their names; "" is here."""
    if refused.code not in _DOUBTFUL:
        return {}
    try:
        settings = resolved(refused.host)
    except ShantyError:
        return {}
    place, port = settings.get("hostname", refused.host.name), int(settings.get("port", 22))
    words: dict[str, Any] = {"host": place, "port": port, "timeout": _LOOK}

    def ask(client: RpcClient | None) -> dict[str, Any]:
        if client is None:
            return look(place, port, _LOOK)
        try:
            return client.ask("check-alive", **words, patience=_LOOK + 2).values
        except ShantyError:
            return {}  # that host is in trouble itself; its own checks tell

    askers: dict[str, RpcClient | None] = {each.host.name: each for each in clients[:_WITNESSES]}
    indirect = ("proxycommand", "proxyjump")
    if all(settings.get(key, "none").lower() == "none" for key in indirect):
        askers = {"": None, **askers}
    with ThreadPoolExecutor(len(askers) or 1) as pool:
        answers = pool.map(ask, askers.values())
        return {name: view for name, view in zip(askers, answers, strict=True) if view}


def _view_text(name: str, view: Mapping[str, Any]) -> str:
    more = ", but the machine is up" if view["port"] == "silent" and view["alive"] else ""
    return f"seen from {name or 'here'}: {_WORDS[view['port']]}{more}"


def shell_noise(client: RpcClient) -> Iterator[Finding]:
    """Checks what the login itself showed on a host that was reached."""
    if client.noise:
        yield Finding(
            "shell-noise",
            Level.WARNING,
            client.host.name,
            "its login shell prints text where no person is, which breaks scp and rsync",
            f"it begins with {client.noise.splitlines()[0][:80]!r}",
            "print only for a person: in ~/.bashrc, put `[ -t 1 ] || return` before it",
        )
