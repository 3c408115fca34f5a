"""Why a host cannot be had: ssh's word, and what can be seen of the host by others.

ssh says no more than that nothing came back. Whether the host is off, or up behind a firewall, or
frozen, shows in what else of it answers: to this machine, where the way is direct, and to its
neighbours, which are asked through their RPC clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from shanty.launch.cluster.host import Host
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.cluster.ssh_errors import Refusal
from shanty.launch.connections.openssh import resolved
from shanty.launch.finding import Finding, Level
from shanty.runtime.errors import ShantyError
from shanty.runtime.rpc.liveness import look

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


def findings(refused: Sequence[Refusal], clients: Sequence[RpcClient]) -> list[Finding]:
    """One finding for each host that could not be had; `RPC clients` are on its neighbours.

    What is wrong at this end of the ways is one finding for all of them.
    """
    if not refused:
        return []
    with ThreadPoolExecutor(len(refused)) as pool:
        views = list(pool.map(lambda one: _asked(one, clients), refused))
    return _once([_finding(one, each) for one, each in zip(refused, views, strict=True)])


def as_said(refused: Sequence[Refusal]) -> list[Finding]:
    """The same by the word of ssh alone, where there is no time to ask anybody."""
    return _once([_finding(one, {}) for one in refused])


def _once(found: Sequence[Finding]) -> list[Finding]:
    at_this_end: dict[str, Finding] = {}
    for each in found:
        if each.code in _HERE:
            at_this_end.setdefault(each.code, replace(each, host=""))
    return [*at_this_end.values(), *(each for each in found if each.code not in _HERE)]


def _asked(refused: Refusal, clients: Sequence[RpcClient]) -> Mapping[str, Mapping[str, Any]]:
    return _views(refused.host, clients) if refused.code in _DOUBTFUL else {}


def _finding(refused: Refusal, views: Mapping[str, Mapping[str, Any]]) -> Finding:
    code, what, fix = judged(refused, views)
    same = code == refused.code
    seen = [_told(name, view) for name, view in views.items()]
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
    """The code, what it means and what to do, after what others have seen of the host; pure."""
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


def _knock(client: RpcClient, place: str, port: int) -> dict[str, Any]:
    """What one of the hosts sees of another."""
    patience = _LOOK + 2
    return client.ask("knock", host=place, port=port, timeout=_LOOK, patience=patience).values


def _views(host: Host, clients: Sequence[RpcClient]) -> dict[str, dict[str, Any]]:
    """What this machine and some hosts see of `host`, by their names; "" is this machine."""
    try:
        settings = resolved(host)
    except ShantyError:
        return {}
    place, port = settings.get("hostname", host.name), int(settings.get("port", 22))
    askers: dict[str, Callable[[], dict[str, Any]]] = {}
    indirect = ("proxycommand", "proxyjump")
    if all(settings.get(key, "none").lower() == "none" for key in indirect):
        askers[""] = lambda: look(place, port, _LOOK)
    for client in clients[:_WITNESSES]:
        askers[client.host.name] = partial(_knock, client, place, port)
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


def _told(name: str, view: Mapping[str, Any]) -> str:
    more = ", but the machine is up" if view["port"] == "silent" and view["alive"] else ""
    return f"seen from {name or 'here'}: {_WORDS[view['port']]}{more}"


def of_client(client: RpcClient) -> list[Finding]:
    """What the login itself showed on a host that was reached."""
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
