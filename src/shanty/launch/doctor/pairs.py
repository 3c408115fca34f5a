"""Finds what is wrong between hosts: by comparing their facts, and by trying."""

from __future__ import annotations

import ipaddress
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shanty.launch.cluster import keys, reachability
from shanty.launch.doctor.facts import Seen
from shanty.launch.finding import Finding, Level
from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import new_id

# Seconds. Files of two hosts are compared by their times (make, rsync), and logs laid side by
# side; time servers keep clocks within milliseconds, so this much means that none does.
CLOCKS = 5.0
_REACH = 2.0  # seconds for the lead to get through: TCP sends a lost first packet again after one
_SHORTEST = 0.5
_LEAST = 1.0  # seconds without which a key is not tried
_AT_ONCE = 32
_ANOTHER = "Host key verification failed"  # so says ssh
_KEY_LIFE = 60.0  # seconds for which a key on trial is let in, should nobody take it out


def of_hosts(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Compares the hosts' facts; pure."""
    yield from _one_machine(seen)
    yield from _clocks(seen)
    machines = distinct_machines(seen)
    if not any(one.health.get("resolves") for one in machines):
        return  # as in every run
    addresses = {one.name: _addresses(one) for one in machines}
    for one in machines:
        for other in machines:
            if one is not other:
                yield from _names(one, other, addresses[other.name])


def distinct_machines(seen: Sequence[Seen]) -> list[Seen]:
    """Returns the hosts, of those that are one machine only the first."""
    return list({one.survey["instance"]: one for one in reversed(seen)}.values())[::-1]


def _one_machine(seen: Sequence[Seen]) -> Iterator[Finding]:
    first: dict[str, Seen] = {}
    for one in seen:
        other = first.setdefault(one.survey["instance"], one)
        if other is not one:
            yield one.error(
                "same-host",
                f"it is the same machine as {other.name}",
                f"both say that they are {one.survey['hostname']}",
                f"name it once, with the sum of its slots: {other.name}:N",
            )


def _clocks(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Finds clocks that differ from most others, of which this machine's is one."""
    known = [one for one in seen if one.clock_error is not None]
    errors = {"": 0.0, **{one.name: one.clock_error or 0.0 for one in known}}
    doubts = {"": 0.0, **{one.name: one.clock_doubt for one in known}}

    def agree(one: str, other: str) -> bool:
        apart = abs(errors[one] - errors[other]) - doubts[one] - doubts[other]
        return apart <= CLOCKS

    most = max(errors, key=lambda name: sum(agree(name, other) for other in errors))
    for name, error in errors.items():
        if not agree(name, most):
            ahead = error - errors[most]
            # with a single host it is its word against this machine's
            than = "this machine's" if most == "" else "the hosts'"
            yield Finding(
                "clock-off",
                Level.WARNING,
                name,
                f"its clock is {_time(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} {than}",
                f"measured to {max(0.001, doubts[name] + doubts[most]):.3g} s",
                "let a time server set it: timedatectl set-ntp true",
                "" if name else "sudo timedatectl set-ntp true",
            )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _names(one: Seen, other: Seen, own: Collection[str]) -> Iterator[Finding]:
    """Checks that `one` resolves the names of `other` to one of the addresses `own`."""
    meant: Mapping[str, Sequence[str] | None] = one.health.get("resolves", {})
    for name in dict.fromkeys((other.name, str(other.survey["hostname"]))):
        found = {_plain(each) for each in meant.get(name) or ()}
        if found and found.isdisjoint(own) and not _is_translated(found, own):
            yield one.finding(
                "name-differs",
                Level.NOTE,  # shanty goes by numbers
                f"it takes {name} for {' and '.join(sorted(found))}, which is not {other.name}'s",
                f"{other.name} has {', '.join(sorted(own))}",
                f"shanty goes by addresses; for other programs mend {name} in its /etc/hosts",
            )
            return


def _addresses(seen: Seen) -> set[str]:
    found = {str(entry["address"]) for entry in seen.survey["addresses"] if not entry["loopback"]}
    connection = seen.survey.get("ssh")
    if connection:
        found.add(connection["server"])
    return {_plain(each) for each in found}


def _plain(address: str) -> str:
    return str(ipaddress.ip_address(address.partition("%")[0]))


def _is_translated(meant: Collection[str], own: Collection[str]) -> bool:
    """True where a host with private addresses is known by a public one, as in a cloud."""
    return any(ipaddress.ip_address(each).is_global for each in meant) and not any(
        ipaddress.ip_address(each).is_global for each in own
    )


def between(seen: Sequence[Seen], until: float) -> Iterator[Finding]:
    """Lets the hosts try to reach each other, until time.monotonic() is `until`.

    The first host is the lead: `lead-blocked` and `run-key-refused` of all others side by side;
    and `same-host-key`, by the keys that ssh knows the hosts by. Raises ShantyError when the
    lead is lost.
    """
    hosts = [one for one in distinct_machines(seen) if one.client is not None]
    if len(hosts) < 2:
        return
    known = _known(hosts)
    yield from _same_keys(hosts, known)
    lead, *workers = hosts
    timeout = max(_SHORTEST, min(_REACH, until - time.monotonic() - _LEAST))
    found = _ways(lead, workers, timeout)
    reached = [one for one in workers if found[one.name].found and known[one.name]]
    if reached and lead.survey["ssh_program"] and until - time.monotonic() > _LEAST:
        yield from _KeyTrial(lead, reached, found, known).findings(until)
    blocked = [one for one in workers if not found[one.name].found]
    left = until - time.monotonic() - _SHORTEST
    if blocked and left > _SHORTEST:  # a host under load may only have been slow
        found.update(_ways(lead, blocked, min(_REACH, left)))
    for one in blocked:
        if not found[one.name].found:
            yield one.error(
                "lead-blocked",
                f"the lead host {lead.name} does not get to its sshd",
                found[one.name].tried,
                f"let its firewall pass TCP to its ssh port from {lead.name}, or name another "
                "host first: that is the lead then",
            )


def _ways(lead: Seen, others: Sequence[Seen], timeout: float) -> dict[str, reachability.Attempt]:
    assert lead.client is not None
    every = [lead, *others]
    surveys = {one.name: one.survey for one in every}
    return reachability.tried([one.host for one in every], lead.client, surveys, timeout)


def _known(hosts: Sequence[Seen]) -> dict[str, list[str]]:
    """Returns the known_hosts lines of each host for the lead host."""

    def lines(index: int) -> list[str]:
        one = hosts[index]
        assert one.client is not None
        try:
            return reachability.known_lines(one.host, one.client, keys.alias(index))
        except ShantyError:
            return []

    with ThreadPoolExecutor(min(_AT_ONCE, len(hosts))) as pool:
        found = list(pool.map(lines, range(len(hosts))))
    return {one.name: each for one, each in zip(hosts, found, strict=True)}


def _same_keys(hosts: Sequence[Seen], known: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    owner: dict[str, Seen] = {}
    for one in hosts:
        shared: Seen | None = None
        for line in known[one.name]:
            if not line.startswith("@"):
                other = owner.setdefault(line.partition(" ")[2], one)
                if other is not one:
                    shared = other
        if shared is not None:
            yield one.warning(
                "same-host-key",
                f"it has the same ssh host key as {shared.name}, so either can pass for the other",
                "the two were copied from one disk",
                f"make new ones on {one.name} (sudo rm /etc/ssh/ssh_host_*; sudo ssh-keygen -A), "
                f"then forget the old one here: ssh-keygen -R {one.name}",
            )


@dataclass(frozen=True, slots=True)
class _Authorized:
    """The result of adding a key: an error or "", and what may keep sshd from reading it."""

    error: str
    doubts: str


@dataclass
class _KeyTrial:
    """Authorizes a new key on every worker, and lets the lead host try it."""

    lead: Seen
    workers: Sequence[Seen]
    found: Mapping[str, reachability.Attempt]
    known: Mapping[str, Sequence[str]]
    run: str = field(default_factory=lambda: new_id(time.time()))

    def findings(self, until: float) -> list[Finding]:
        """Returns a finding for each worker that refuses the key, and removes the key."""
        with tempfile.TemporaryDirectory(prefix="shanty-") as folder:
            pair = keys.make_pair(Path(folder))
        with ThreadPoolExecutor(min(_AT_ONCE, len(self.workers))) as pool:
            try:
                answers = pool.map(lambda one: self._authorize(one, pair.public), self.workers)
                authorized = dict(zip((one.name for one in self.workers), answers, strict=True))
                tried = [one for one in self.workers if not authorized[one.name].error]
                outcomes = self._try(tried, pair, until)
            finally:
                list(pool.map(self._revoke, self.workers))
        found = []
        for one in self.workers:
            written = authorized[one.name]
            outcome = outcomes.get(one.name, {"code": 1, "text": written.error})
            if outcome["code"]:  # None is no answer in time: a slow host, no refusal
                found.append(self._refused(one, str(outcome["text"]), written.doubts))
        return found

    def _authorize(self, one: Seen, public: str) -> _Authorized:
        assert one.client is not None
        way = self._way(one)
        args: dict[str, Any] = {
            "run": self.run,
            "index": self._index(one),
            "key": public,
            "command": "true",
            "from": [way["source"]],
            "seconds": _KEY_LIFE,
            "without": list(keys.options_lacking(way["banner"])),
        }
        try:
            doubts = one.client.ask("authorize", **args, patience=5.0).values["findings"]
        except ShantyError as error:
            return _Authorized(error.what, error.why)
        return _Authorized("", "; ".join(doubts))

    def _revoke(self, one: Seen) -> None:
        assert one.client is not None
        try:
            one.client.ask("revoke", run=self.run, index=self._index(one), patience=5.0)
        except ShantyError:
            return  # the line expires by itself, and the RPC client takes it out when it goes

    def _try(
        self, workers: Sequence[Seen], pair: keys.KeyPair, until: float
    ) -> dict[str, Mapping[str, Any]]:
        """Lets the lead host log in to each of them; the results by name."""
        assert self.lead.client is not None
        timeout = max(_LEAST, until - time.monotonic() - _SHORTEST)
        answer = self.lead.client.ask(
            "try-key",
            key=pair.private.decode(),
            known_hosts="".join(f"{line}\n" for one in workers for line in self.known[one.name]),
            hosts=[
                {
                    "alias": _alias(self.known[one.name]),
                    "address": self._way(one)["peer"],
                    "port": self._way(one)["port"],
                    "user": one.survey["user"],
                }
                for one in workers
            ],
            timeout=timeout,
            patience=timeout + 5.0,
        )
        return dict(zip((one.name for one in workers), answer.values["tries"], strict=True))

    def _refused(self, one: Seen, text: str, doubts: str) -> Finding:
        lead, address = self.lead.name, self._way(one)["peer"]
        evidence = "; ".join(filter(None, [*text.splitlines()[-1:], doubts]))
        if _ANOTHER in text:
            return one.error(
                "lead-blocked",
                f"at its address {address} the lead host {lead} gets to another machine",
                evidence,
                f"see who has {address} on the network of {lead}",
            )
        return one.error(
            "run-key-refused",
            f"its sshd takes no key that a run puts into authorized_keys, so {lead} cannot log in",
            evidence,
            "let its sshd read ~/.ssh/authorized_keys (AuthorizedKeysFile, PubkeyAuthentication, "
            "AllowUsers, StrictModes): its log says which it is, `sudo sshd -T` shows them all",
        )

    def _way(self, one: Seen) -> Mapping[str, Any]:
        return self.found[one.name].found or {}

    def _index(self, one: Seen) -> int:
        return 1 + self.workers.index(one)


def _alias(lines: Sequence[str]) -> str:
    """Returns the name that lines of a known_hosts file are about."""
    return next(word for word in lines[0].split() if not word.startswith("@"))
