"""Logs in to hosts within a time limit, and finds out why some cannot be reached.

ssh says no more than that nothing came back. Whether the host is off, or up behind a firewall, or
frozen, shows in what else of it answers: to this machine, where the way is direct, and to its
neighbours, which are asked through their RPC clients.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from shanty.launch.cluster import connect
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.cluster.ssh_errors import Refusal
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
        met = [each for each in outcomes if each.host not in self.late]
        for each in outcomes:
            if isinstance(each, RpcClient) and each.host in self.late:
                each.close(0.0)  # it was ended in the moment in which it came
        clients = [each for each in met if isinstance(each, RpcClient)]
        return clients, [each for each in met if isinstance(each, Refusal)]

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
        seconds = min(_CONNECT, int(self._reaching.left))
        return _with_timeout(super().route, seconds)

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts `argv` there, if there is time."""
        self._reaching.begin(self.host)
        process = super().start(argv)
        self._reaching.watch(self.host, process)
        return process


def _with_timeout(route: Route, seconds: int) -> Route:
    """Returns the same route with a limit of seconds for every machine on it."""
    via = _with_timeout(route.via, seconds) if route.via is not None else None
    return replace(route, via=via, timeout=seconds)


def explain(refused: Sequence[Refusal], clients: Sequence[RpcClient]) -> list[Finding]:
    """Makes a finding for each host that was not reached; `clients` are on its neighbours.

    What is wrong at this end of the ways is one finding for all of them.
    """
    if not refused:
        return []
    with ThreadPoolExecutor(len(refused)) as pool:
        views = list(pool.map(lambda one: _views(one, clients), refused))
    return _merged([_finding(one, each) for one, each in zip(refused, views, strict=True)])


def explain_by_ssh(refused: Sequence[Refusal]) -> list[Finding]:
    """Makes the same findings by ssh's message alone, where there is no time to ask anybody."""
    return _merged([_finding(one, {}) for one in refused])


def _merged(found: Sequence[Finding]) -> list[Finding]:
    at_this_end: dict[str, Finding] = {}
    for each in found:
        if each.code in _HERE:
            at_this_end.setdefault(each.code, replace(each, host=""))
    return [*at_this_end.values(), *(each for each in found if each.code not in _HERE)]


def _finding(refused: Refusal, views: Mapping[str, Mapping[str, Any]]) -> Finding:
    code, what, fix = judged(refused, views)
    same = code == refused.code
    seen = [_view_text(name, view) for name, view in views.items()]
    return Finding(
        code,
        Level.ERROR,
        refused.host.name,
        what,
        "; ".join(filter(None, [refused.detail, *seen])),
        fix,
        refused.command if same else "",
        fixable=code in _FIXABLE,
    )


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
            return (
                "host-unreachable",
                "nothing answers there",
                "see whether it is up and on this network",
            )
    return refused.code, refused.what, refused.fix


def _liveness(client: RpcClient, place: str, port: int) -> dict[str, Any]:
    """Asks one of the hosts what it sees of another."""
    patience = _LOOK + 2
    return client.ask("check-alive", host=place, port=port, timeout=_LOOK, patience=patience).values


def _views(refused: Refusal, clients: Sequence[RpcClient]) -> dict[str, dict[str, Any]]:
    """Asks this machine and some hosts what they see of a host, by their names; "" is here."""
    if refused.code not in _DOUBTFUL:
        return {}
    try:
        settings = resolved(refused.host)
    except ShantyError:
        return {}
    place, port = settings.get("hostname", refused.host.name), int(settings.get("port", 22))
    askers: dict[str, Callable[[], dict[str, Any]]] = {}
    indirect = ("proxycommand", "proxyjump")
    if all(settings.get(key, "none").lower() == "none" for key in indirect):
        askers[""] = lambda: look(place, port, _LOOK)
    for client in clients[:_WITNESSES]:
        askers[client.host.name] = partial(_liveness, client, place, port)
    if not askers:
        return {}
    found = {}
    with ThreadPoolExecutor(len(askers)) as pool:
        for name, answer in [(name, pool.submit(ask)) for name, ask in askers.items()]:
            try:
                found[name] = answer.result()
            except ShantyError:
                continue  # that host is in trouble itself; its own checks tell
    return found


def _view_text(name: str, view: Mapping[str, Any]) -> str:
    more = ", but the machine is up" if view["port"] == "silent" and view["alive"] else ""
    return f"seen from {name or 'here'}: {_WORDS[view['port']]}{more}"


def shell_noise(client: RpcClient) -> list[Finding]:
    """Checks what the login itself showed on a host that was reached."""
    if not client.noise:
        return []
    line = client.noise.splitlines()[0][:80]
    return [
        Finding(
            "shell-noise",
            Level.WARNING,
            client.host.name,
            "its login shell prints text where no person is, which breaks scp and rsync",
            f"it begins with {line!r}",
            "print only for a person: in ~/.bashrc, put `[ -t 1 ] || return` before it",
        )
    ]
