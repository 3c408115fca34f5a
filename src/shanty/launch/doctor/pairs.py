"""Finds problems between hosts: compares their facts, and lets them try to reach each other."""

from __future__ import annotations

import ipaddress
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from shanty.launch.doctor.facts import Seen
from shanty.launch.finding import Finding, Level
from shanty.launch.transport import keys, reachability
from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import new_id

# Seconds. Programs compare the times of files on two hosts (make, rsync), and people compare logs.
# A time server keeps clocks within milliseconds, so a larger difference means that there is none.
CLOCKS = 5.0
# How the lead host reaches each worker: what the verb `find-ssh` returns.
Ways = Mapping[str, Mapping[str, Any]]
Known = Mapping[str, Sequence[str]]  # the known_hosts lines of each host
_REACH = 2.0  # seconds for a connection: TCP repeats a lost first packet after one second
_SHORTEST = 0.5
_LEAST = 1.0  # with fewer seconds left, no key is tried
_AT_ONCE = 32
_ANOTHER = "Host key verification failed"  # ssh's message
_KEY_LIFE = 60.0  # seconds after which a trial key expires, in case it is not removed


def of_hosts(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Compares the facts of the hosts; pure."""
    first: dict[str, Seen] = {}
    for one in seen:
        other = first.setdefault(one.survey["instance"], one)
        if other is not one:
            yield one.error(
                "same-host",
                f"it is the same machine as {other.name}",
                f"both have the host name {one.survey['hostname']}",
                f"list it once, with the sum of its slots: {other.name}:N",
            )
    yield from _clocks(seen)
    machines = distinct_machines(seen)
    yield from _same_addresses(machines)
    if not any(one.health.get("resolves") for one in machines):
        return  # a run does not ask for names
    addresses = {one.name: _addresses(one) for one in machines}
    for one in machines:
        for other in machines:
            if one is not other:
                yield from _names(one, other, addresses[other.name])


def distinct_machines(seen: Sequence[Seen]) -> list[Seen]:
    """Returns the hosts; where several names are one machine, only the first."""
    return list({one.survey["instance"]: one for one in reversed(seen)}.values())[::-1]


def _same_addresses(machines: Sequence[Seen]) -> Iterator[Finding]:
    """Finds hosts whose own address, by which they were reached, another one has as well."""
    for one in machines:
        address = (one.survey.get("ssh") or {}).get("server", "")
        for other in machines:
            if other is not one and any(e["address"] == address for e in other.survey["addresses"]):
                fix = f"give one of them another address (`ip addr` on {other.name} shows its own)"
                seen_there = f"both have {address}, and are two machines"
                what = f"{other.name} has its address {address} too, so packets may reach either"
                yield one.error("address-twice", what, seen_there, fix)
                what = f"it also has {address}, the address of {one.name}"
                yield other.error("address-twice", what, seen_there, fix)


def _clocks(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Finds clocks that differ from the majority; the clock of this machine counts too."""
    errors = {"": 0.0} | {o.name: o.clock_error for o in seen if o.clock_error is not None}
    doubts = {"": 0.0} | {one.name: one.clock_doubt for one in seen}

    def agree(one: str, other: str) -> bool:
        return abs(errors[one] - errors[other]) - doubts[one] - doubts[other] <= CLOCKS

    most = max(errors, key=lambda name: sum(agree(name, other) for other in errors))
    for name, error in errors.items():
        if not agree(name, most):
            ahead = error - errors[most]
            # with a single host, either clock may be wrong
            than = "the clock of this machine" if most == "" else "the clocks of the hosts"
            yield Finding(
                "clock-off",
                Level.WARNING,
                name,
                f"its clock is {_time(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} {than}",
                f"measured to {max(0.001, doubts[name] + doubts[most]):.3g} s",
                "enable time synchronization: timedatectl set-ntp true",
                "" if name else "sudo timedatectl set-ntp true",
            )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _names(one: Seen, other: Seen, own: Collection[str]) -> Iterator[Finding]:
    """Checks that `one` resolves the names of `other` to an address in `own`."""
    meant: Mapping[str, Sequence[str] | None] = one.health.get("resolves", {})
    for name in dict.fromkeys((other.name, str(other.survey["hostname"]))):
        found = {_plain(each) for each in meant.get(name) or ()}
        if found and found.isdisjoint(own) and not _is_translated(found, own):
            yield one.finding(
                Level.NOTE,  # shanty connects to numeric addresses
                "name-differs",
                f"it resolves {name} to {' and '.join(sorted(found))}, not to {other.name}",
                f"{other.name} has {', '.join(sorted(own))}",
                f"shanty uses addresses; for other programs, correct {name} in its /etc/hosts",
            )
            return


def _addresses(seen: Seen) -> set[str]:
    found = [entry["address"] for entry in seen.survey["addresses"] if not entry["loopback"]]
    if seen.survey.get("ssh"):
        found.append(seen.survey["ssh"]["server"])
    return {_plain(each) for each in found}


def _plain(address: str) -> str:
    return str(ipaddress.ip_address(address.partition("%")[0]))


def _is_translated(meant: Collection[str], own: Collection[str]) -> bool:
    """True where a host has private addresses and its name a public one, as in a cloud."""
    there, here = (any(ipaddress.ip_address(e).is_global for e in each) for each in (meant, own))
    return there and not here


def between(seen: Sequence[Seen], until: float) -> Iterator[Finding]:
    """Lets the first host, the lead, try to reach all others at once.

    Ends when time.monotonic() is `until`. ShantyError when the lead host is lost.
    """
    hosts = [one for one in distinct_machines(seen) if one.client is not None]
    if len(hosts) < 2:
        return
    known = _known(hosts)
    yield from _same_keys(hosts, known)
    lead, *workers = hosts
    timeout = max(_SHORTEST, min(_REACH, until - time.monotonic() - _LEAST))
    found = _ways(lead, workers, timeout)
    ways = {name: way.found for name, way in found.items() if way.found and known[name]}
    if ways and lead.survey["ssh_program"] and until - time.monotonic() > _LEAST:
        reached = [one for one in workers if one.name in ways]
        yield from _key_trial(lead, reached, ways, known, until)
    blocked = [one for one in workers if not found[one.name].found]
    left = until - time.monotonic() - _SHORTEST
    if blocked and left > _SHORTEST:  # a host under load may just have been slow
        found.update(_ways(lead, blocked, min(_REACH, left)))
    for one in blocked:
        if not found[one.name].found:
            yield one.error(
                "lead-blocked",
                f"the lead host {lead.name} cannot reach its sshd",
                found[one.name].tried,
                f"allow TCP from {lead.name} to its ssh port in its firewall, or list another "
                "host first, which is then the lead host",
            )


def _ways(lead: Seen, others: Sequence[Seen], timeout: float) -> dict[str, reachability.Attempt]:
    every = [lead, *others]
    surveys = {one.name: one.survey for one in every}
    return reachability.tried([one.host for one in every], lead.asked, surveys, timeout)


def _known(hosts: Sequence[Seen]) -> dict[str, list[str]]:
    def lines(index: int) -> list[str]:
        try:
            return reachability.known_lines(
                hosts[index].host, hosts[index].asked, keys.alias(index)
            )
        except ShantyError:
            return []

    with ThreadPoolExecutor(min(_AT_ONCE, len(hosts))) as pool:
        found = list(pool.map(lines, range(len(hosts))))
    return {one.name: each for one, each in zip(hosts, found, strict=True)}


def _same_keys(hosts: Sequence[Seen], known: Known) -> Iterator[Finding]:
    owner: dict[str, Seen] = {}
    for one in hosts:
        lines = [line for line in known[one.name] if not line.startswith("@")]
        owners = [owner.setdefault(line.partition(" ")[2], one) for line in lines]
        shared = [other for other in owners if other is not one]
        if shared:
            yield one.warning(
                "same-host-key",
                f"it has the same ssh host key as {shared[-1].name}, so either can impersonate "
                "the other",
                "both were copied from the same disk",
                f"make new keys on {one.name} (sudo rm /etc/ssh/ssh_host_*; sudo ssh-keygen -A), "
                f"then remove the old key here: ssh-keygen -R {one.name}",
            )


def _key_trial(
    lead: Seen, workers: Sequence[Seen], ways: Ways, known: Known, until: float
) -> list[Finding]:
    """Authorizes a new key on every worker, lets the lead host log in with it, and removes it.

    Where no key can be added, the lead host tries its own keys, as in a run. Returns a finding for
    each worker that refuses the login; `ways` says how the lead host reaches each.
    """
    run = new_id(time.time())
    index = {one.name: number for number, one in enumerate(workers, 1)}
    with tempfile.TemporaryDirectory(prefix="shanty-") as folder:
        pair = keys.make_pair(Path(folder))

    def authorize(one: Seen) -> tuple[str, str, str]:
        """Adds the key; returns an error, why no key can be added, what sshd may reject; or ""."""
        way = ways[one.name]
        args: dict[str, Any] = {
            "run": run,
            "index": index[one.name],
            "key": pair.public,
            "command": "true",
            "from": [way["source"]],
            "seconds": _KEY_LIFE,
            "without": list(keys.options_lacking(way["banner"])),
        }
        try:
            answer = one.asked.ask("authorize", **args, patience=5.0).values
        except ShantyError as error:
            return error.what, "", error.why
        return "", answer["refused"], "; ".join(answer["findings"])

    def attempt(key: str, tried: Sequence[Seen]) -> dict[str, Any]:
        """Lets the lead host log in with the key; returns the outcomes by the names of hosts."""
        timeout = max(_LEAST, until - time.monotonic() - _SHORTEST)
        answer = lead.asked.ask(
            "try-key",
            key=key,
            known_hosts="".join(f"{line}\n" for one in tried for line in known[one.name]),
            hosts=[
                {
                    "alias": _alias(known[one.name]),
                    "address": ways[one.name]["peer"],
                    "port": ways[one.name]["port"],
                    "user": one.survey["user"],
                }
                for one in tried
            ],
            timeout=timeout,
            patience=timeout + 5.0,
        )
        return dict(zip((o.name for o in tried), answer.values["tries"], strict=True))

    def revoke(one: Seen) -> None:
        # the line expires, and the RPC server removes it when it ends
        with suppress(ShantyError):
            one.asked.ask("revoke", run=run, index=index[one.name], patience=5.0)

    with ThreadPoolExecutor(min(_AT_ONCE, len(workers))) as pool:
        try:
            authorized = list(zip(workers, pool.map(authorize, workers), strict=True))
            taken = [one for one, (error, why, _) in authorized if not (error or why)]
            closed = [one for one, (error, why, _) in authorized if why and not error]
            outcomes = attempt(pair.private.decode(), taken) if taken else {}
            outcomes.update(attempt("", closed) if closed else {})
        finally:
            list(pool.map(revoke, workers))
    found = []
    for one, (error, closed_by, doubts) in authorized:
        outcome = outcomes.get(one.name, {"code": 1, "text": error})
        if outcome["code"]:  # None means that the answer was late: a slow host, not a refusal
            address = ways[one.name]["peer"]
            found.append(_refused(lead, one, address, str(outcome["text"]), closed_by or doubts))
    return found


def _refused(lead: Seen, one: Seen, address: str, text: str, doubts: str) -> Finding:
    evidence = "; ".join(filter(None, [*text.splitlines()[-1:], doubts]))
    if _ANOTHER in text:
        return one.error(
            "lead-blocked",
            f"the lead host {lead.name} reaches another machine at its address {address}",
            evidence,
            f"find the machine with the address {address} on the network of {lead.name}",
        )
    return one.error(
        "run-key-refused",
        f"its sshd ignores the key that a run adds to authorized_keys; {lead.name} cannot log in",
        evidence,
        "let its sshd read ~/.ssh/authorized_keys: its log names the setting (AuthorizedKeysFile, "
        "PubkeyAuthentication, AllowUsers, StrictModes), `sudo sshd -T` shows them all",
    )


def _alias(lines: Sequence[str]) -> str:
    return next(word for word in lines[0].split() if not word.startswith("@"))
