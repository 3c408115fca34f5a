"""Selects the networks that a run takes: from the cache if they still work, else by measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from shanty.launch.network.diagnosis import CLEARLY, findings, judge
from shanty.launch.network.measure import measure, measure_all, reach
from shanty.launch.network.report import rate_text
from shanty.launch.network.topology import (
    Choice,
    Measured,
    Network,
    Ports,
    Route,
    SurveyedHost,
    Surveys,
    fingerprint,
    networks,
)
from shanty.launch.plain_json import decode, encode
from shanty.launch.transport.parallel import Say
from shanty.runtime.rundir import read_json, write_json

STRIPED = 1.3  # times as fast as the best network have several together to be
COUNTABLE = 2.5e9  # bytes/s; a higher rate measures the processor, not the cable
_FORM = 2  # version of the files in <home>/net; other versions are not read
_LIFE = 7 * 86400.0  # seconds after which networks are always measured again
_LIFE_BROKEN = 600.0  # the same if a network was broken, since it may be repaired
Hosts = Sequence[SurveyedHost]
Reach = Callable[[Sequence[Network]], Measured]


def decide(
    hosts: Hosts, home: Path, say: Say = lambda _: None, *, ports: Ports = None, fresh: bool = False
) -> Choice:
    """Decides which networks a run over `hosts` takes; never raises for a network's faults.

    If no network joins all hosts the route is empty, and an ERROR says why. `home` is shanty's
    folder here, which has the cache; `say` gets texts about the progress, "" at the end. `ports`
    are the first and the last TCP port that the user allows between the hosts, None for any.
    `fresh` ignores the cache, since a network that has become slow still works. PrepareError when
    a host is lost meanwhile.
    """
    choice = _known_or_measured(measure, _holds, hosts, home, say, ports, fresh)[1]
    if choice.age is None:
        return choice
    return replace(choice, findings=tuple(f for f in choice.findings if f.code != "net-slow"))


def examine(
    hosts: Hosts, home: Path, say: Say = lambda _: None, *, ports: Ports = None, fresh: bool = False
) -> tuple[Measured, Choice]:
    """Measures every network of the hosts, and the speed between every two of them.

    Arguments are those of `decide`. The cache is used if it has all of this, and the same hosts
    still reach each other. Later runs use the result.
    """
    return _known_or_measured(measure_all, _unchanged, hosts, home, say, ports, fresh)


def _known_or_measured(
    work: Callable[..., Measured],
    holds: Callable[[Reach, Measured, Route], bool],
    hosts: Hosts,
    home: Path,
    say: Say,
    ports: Ports,
    fresh: bool,
) -> tuple[Measured, Choice]:
    """Returns what the cache has if a test shows that it `holds`, else what `work` measures."""
    began = time.monotonic()
    clients = {host.name: host.client for host in hosts}
    if len(hosts) < 2:
        return Measured(tuple(clients), ()), Choice(Route())
    key = fingerprint(hosts) + (f"-{ports[0]}-{ports[1]}" if ports else "")
    found = None if fresh else load(home, key)
    if found is None or not holds(partial(reach, clients, ports), found[0], found[1].route):
        measured = work(clients, networks(hosts), say, ports)
        say("")
        found = measured, choose(measured, {host.name: host.survey for host in hosts})
        if found[1].route.rails:  # a broken network may be repaired in the next minute
            save(home, key, *found)
    return found[0], replace(found[1], seconds=time.monotonic() - began)


def _unchanged(reach: Reach, before: Measured, _route: Route) -> bool:
    """True if all was measured, and the same hosts reach each other over every network."""
    if not before.whole:
        return False
    now = reach([network for network in before.networks if before.contacts.get(network.name)])
    return all(
        contact.ok == before.contacts[name][pair].ok
        for name, contacts in now.contacts.items()
        for pair, contact in contacts.items()
    )


def _holds(reach: Reach, _before: Measured, route: Route) -> bool:
    rails = [Network(f"rail {index}", rail.interfaces) for index, rail in enumerate(route.rails)]
    return bool(rails) and all(map(reach(rails).joins, rails))


def choose(measured: Measured, surveys: Surveys) -> Choice:
    """Chooses the best route over what was measured; `surveys` are the hosts', for their MTUs."""
    taken, reason = _best(measured)
    verdicts = {network.name: judge(measured, network, taken) for network in measured.networks}
    return Choice(
        Route(tuple(network.rail for network in taken), reason),
        tuple(findings(measured, verdicts, taken, surveys)),
        verdicts,
        tuple(network.rail for network in measured.networks if measured.joins(network)),
    )


def _best(measured: Measured) -> tuple[list[Network], str]:
    serving = measured.serving()
    if not serving:
        return [], "no network joins all hosts"
    paced = [network for network in serving if network.name in measured.paces]
    ssh = next((network for network in serving if measured.by_ssh(network)), None)
    if not paced or len(serving) == 1:
        return [ssh or serving[0]], "no other network joins all hosts"
    striped, total = _striped(measured, paced)
    if striped:
        alone = rate_text(measured.rate(striped[0].name))
        return striped, f"{rate_text(total)} together, {alone} at most alone"
    best = max(paced, key=lambda network: _worth(measured, network))
    if ssh in paced and _worth(measured, best) < CLEARLY * _worth(measured, ssh):
        return [ssh], "ssh uses it, and no other is clearly faster"
    return [best], f"the fastest: {rate_text(measured.rate(best.name))} between the slowest two"


def _worth(measured: Measured, network: Network) -> float:
    """Estimates the speed of a network in bytes/s: if it is too fast to measure, by the kernel's
    value for its slowest cable."""
    rate = measured.rate(network.name)
    return rate if rate < COUNTABLE else max(COUNTABLE, min(network.speeds.values(), default=0.0))


def _striped(measured: Measured, paced: Sequence[Network]) -> tuple[list[Network], float]:
    """Returns networks that carry more together, the fastest first, and their sum in bytes/s."""
    by_name = {network.name: network for network in paced}
    alone = max(map(measured.rate, by_name))
    for names, pairs in measured.together.items():
        # an MPI distributes data evenly, so the slowest network limits all
        total = min((len(names) * min(rates) for rates in pairs.values()), default=0.0)
        if set(names) <= set(by_name) and alone < COUNTABLE and total >= STRIPED * alone > 0:
            order = sorted(names, key=measured.rate, reverse=True)
            return [by_name[name] for name in order], total
    return [], 0.0


def load(home: Path, fingerprint: str) -> tuple[Measured, Choice] | None:
    """Returns what was measured and chosen; None if it is too old, or the file is damaged."""
    value = read_json(_path(home, fingerprint)) or {}
    if value.get("form") != _FORM:
        return None
    try:
        age = time.time() - value["time"]
        measured, choice = decode(Measured, value["measured"]), decode(Choice, value["choice"])
        whole = all(one.ok for each in measured.contacts.values() for one in each.values())
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    fresh = -60 < age < (_LIFE if whole else _LIFE_BROKEN)
    return (measured, replace(choice, age=max(0.0, age))) if fresh else None


def save(home: Path, fingerprint: str, measured: Measured, choice: Choice) -> None:
    """Keeps it, and removes old files; runs work without a home that can be written."""
    path = _path(home, fingerprint)
    value = {
        "form": _FORM,
        "time": time.time(),
        "measured": encode(measured),
        "choice": encode(choice),
    }
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value)
        for old in path.parent.glob("*.json"):
            if time.time() - old.stat().st_mtime > _LIFE:
                old.unlink()


def _path(home: Path, fingerprint: str) -> Path:
    return home / "net" / f"{fingerprint}.json"
