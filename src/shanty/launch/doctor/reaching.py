"""Logs in to hosts within a time limit, and finds out why some of them cannot be reached.

ssh only reports that nothing answered. Whether the host is off, behind a firewall or frozen shows
in whether it answers otherwise: to this machine, and to the hosts next to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import starmap
from typing import Any

from shanty.launch.finding import Finding, Level
from shanty.launch.transport import connect
from shanty.launch.transport.openssh import resolved
from shanty.launch.transport.refusal import LATE, Refusal, known_cause
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import ShantyError
from shanty.runtime.rpc.reachability import look
from shanty.runtime.site import Host

_CONNECT = 5  # seconds in which a host has to answer
_SILENT = 8.0  # seconds that a host may be silent after the login
_WORD = 0.5  # a host silent this many seconds before the end counts as silent, not as unchecked
_LOOK = 2.5  # seconds to look at a host
_WITNESSES = 3
_DOUBTFUL = ("host-unreachable", "host-silent", "ssh-dropped", "ssh-refused", "proxy-failed")
_HERE = (
    "key-open",
    "key-locked",
    "certificate-expired",
    "ssh-missing",
    "ssh-configuration",
)  # problems of this machine
_FIXABLE = ("password-needed", "host-key-unknown", "key-open")
# What other machines see at the ssh port, and what it means. The first that is seen counts.
_SEEN: Mapping[str, str] = {
    "mute": "host-silent",
    "other": "not-ssh",
    "closes": "ssh-dropped",
    "refused": "ssh-refused",
}
_FILTERED = (
    "ssh-filtered",
    "it is up, but its ssh port does not answer",
    "allow TCP to that port in its firewall",
)
_WORDS: Mapping[str, str] = {
    "ssh": "its sshd answers",
    "other": "no ssh server answers",
    "mute": "it accepts the connection and sends nothing",
    "closes": "it closes the connection at once",
    "refused": "it refuses the connection",
    "unreachable": "no machine has that address",
    "silent": "no answer",
    "unresolved": "the name does not resolve",
}


def reached(
    hosts: Sequence[Host], until: float
) -> tuple[list[RpcClient], list[Refusal], list[str]]:
    """Logs in to hosts until time.monotonic() is `until`.

    Returns the RPC clients, the refusals of other hosts, and the names of the hosts for which the
    time did not suffice: nothing is known of these.
    """
    outcomes = connect.attempt(
        hosts,
        terminal=False,
        fresh=_CONNECT,
        patience=max(0.1, min(_SILENT, until - time.monotonic() - _WORD)),
        until=until,
    )
    clients = [each for each in outcomes if isinstance(each, RpcClient)]
    refused = [each for each in outcomes if isinstance(each, Refusal)]
    late = [each.host.name for each in refused if each.code == LATE]
    return clients, [each for each in refused if each.code != LATE], late


def explain(refused: Sequence[Refusal], clients: Sequence[RpcClient] | None) -> list[Finding]:
    """Makes a finding for each host that was not reached.

    `clients` are on other hosts and can look at it; None where the time does not suffice to ask.
    A problem of this machine is one finding for all hosts.
    """
    at_this_end: dict[str, Finding] = {}
    others = []
    with ThreadPoolExecutor(len(refused) or 1) as pool:
        every = pool.map(lambda one: {} if clients is None else _views(one, clients), refused)
        for one, views in zip(refused, every, strict=True):
            code, what, fix = explained(one, views)
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


def explained(refused: Refusal, views: Mapping[str, Mapping[str, Any]]) -> tuple[str, str, str]:
    """Returns code, message and fix, using what other machines see of the host; pure."""
    ports = {str(view["port"]) for view in views.values()}
    if "ssh" in ports:
        # A ProxyCommand may lead elsewhere; with one, this machine does not look itself.
        if refused.code == "host-unreachable" and "" in views:
            return _FILTERED
        if refused.code == "ssh-dropped" and "" not in views:
            return known_cause("proxy-failed")
    else:
        for port, code in _SEEN.items():
            if port in ports:
                return known_cause(code)
        if any(view["alive"] for view in views.values()):
            return _FILTERED
        if views and refused.code == "host-silent":  # what ssh reports with a ProxyCommand
            return known_cause("host-unreachable")
    return refused.code, refused.what, refused.fix


def _views(refused: Refusal, clients: Sequence[RpcClient]) -> dict[str, dict[str, Any]]:
    """Returns what this machine ("") and some hosts see of a host, by their names."""
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
            return {}  # that host has a problem itself, which its own checks report

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
    """Checks what the login printed on a host that was reached."""
    if client.noise:
        yield Finding(
            "shell-noise",
            Level.WARNING,
            client.host.name,
            "its login shell prints text without a terminal, which breaks scp and rsync",
            f"it begins with {client.noise.splitlines()[0][:80]!r}",
            "print only to a terminal: in ~/.bashrc, put `[ -t 1 ] || return` before it",
        )
