"""Examines hosts: every check side by side, each bounded, none of them hidden by another's failure.

Who is called for what (the signatures that `check` relies on):

    carry/host/health.py          verb `health` (`names` to be resolved there): facts, no
                                  judgement, within 3 s
    doctor/hosts.py               of_host(seen: Seen, need: Need) -> Iterable[Finding]; pure.
                                  With `seen.health` empty: only what the survey shows
    doctor/pairs.py               of_hosts(seen: Sequence[Seen]) -> Iterable[Finding]; pure: what
                                  the hosts' facts tell when they are laid side by side
                                  between(seen: Sequence[Seen], until: float) -> Iterable[Finding];
                                  asks the hosts (lead-blocked, run-key-refused), until
                                  time.monotonic() is `until`; the first host is the lead
    doctor/software.py            the MPI and the packages of a run
    doctor/here.py                this machine
    net/decide.py                 the networks between the hosts
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shanty.carry.errors import NotFoundError, PrepareError, ShantyError
from shanty.carry.mpi.installation import Installation
from shanty.carry.spec import JobSpec
from shanty.launch import mpis
from shanty.launch.doctor import access, causes, here, hosts, needs, pairs, software
from shanty.launch.doctor.facts import Seen
from shanty.launch.finding import Finding, Level
from shanty.launch.site import contact
from shanty.launch.site.host import Host
from shanty.launch.site.porter import Porter
from shanty.launch.transport.base import Transport
from shanty.launch.transport.openssh import FreshSSH

_CONNECT = 5  # seconds in which a host has to answer
_SILENT = 8.0  # seconds that one that was logged in to may say nothing
_ASKED = 8.0  # seconds for one question to a host
_BETWEEN = 5.0  # seconds for what hosts try among each other
_NETWORK = 10.0  # seconds for their networks
_LEAST = 3.0  # seconds that they have in any case
LIMIT = 18.0  # seconds for all of it
_LOCAL = 8.0  # seconds for this machine, where all else is done
_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2}
R = TypeVar("R")
Say = Callable[[str], None]
Work = Callable[[], list[Finding]]


@dataclass(frozen=True, slots=True)
class Report:
    """What an examination came to.

    `hosts` are the names of those that were examined, "" for this machine. `unfinished` says of
    each check that could not be made why not. `seconds` is what it all took.
    """

    hosts: tuple[str, ...]
    findings: tuple[Finding, ...]
    unfinished: tuple[str, ...]
    seconds: float

    @property
    def healthy(self) -> bool:
        """True where nothing keeps a run from working."""
        return all(each.level is not Level.ERROR for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {
            "hosts": list(self.hosts),
            "findings": [each.to_json() for each in self.findings],
            "unfinished": list(self.unfinished),
            "seconds": round(self.seconds, 3),
        }


def examine(
    job: JobSpec,
    chosen: Sequence[Host],
    home: Path,
    environ: Mapping[str, str],
    say: Say = lambda _text: None,
    *,
    holds_ranks: bool,
    limit: float = LIMIT,
) -> Report:
    """Examine the hosts for a job, and this machine; it never asks anything of a person.

    `chosen` are the hosts that the job names, none for a run on this machine; `holds_ranks` says
    that this machine is to be looked at as one of them. `home` is shanty's folder here, `say`
    hears what is being done, "" at the end. After `limit` seconds no further check is begun, and
    those that are on have a few seconds. Changes nothing on the hosts but that shanty's own code
    is put there.
    """
    began = time.monotonic()
    examination = _Examination(job, chosen, home, environ, say, began + limit)
    own = partial(here.findings, job, home, environ, holds_ranks=holds_ranks)
    try:
        local = _begun({"this machine": own})
        if chosen:
            examination.of_hosts()
        examination.take(local, _LOCAL)
    finally:
        examination.close()
        say("")
    named = [*([""] if holds_ranks else []), *(host.name for host in chosen)]
    order = {name: index for index, name in enumerate(["", *named])}
    found = sorted(
        causes.settle(examination.findings),
        key=lambda each: (_ORDER[each.level], order.get(each.host, len(order)), each.code),
    )
    return Report(
        tuple(named),
        tuple(dict.fromkeys(found)),
        tuple(examination.unfinished),
        time.monotonic() - began,
    )


@dataclass
class _Examination:
    """One examination of several hosts, as far as it is."""

    job: JobSpec
    chosen: Sequence[Host]
    home: Path
    environ: Mapping[str, str]
    say: Say
    until: float  # by time.monotonic()
    findings: list[Finding] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    porters: list[Porter] = field(default_factory=list)

    def of_hosts(self) -> None:
        """Reach the hosts, then look at each, then at what is between them."""
        self.say("reaching the hosts")
        outcomes = contact.attempt(self.chosen, terminal=False, transport=_fresh, patience=_SILENT)
        refused = [each for each in outcomes if not isinstance(each, Porter)]
        self.porters = [each for each in outcomes if isinstance(each, Porter)]
        self.say("looking at each host")
        absent = _begun({"the way to hosts": partial(access.findings, refused, self.porters)})
        seen = self._seen()
        self.take(absent, _ASKED)
        for porter in self.porters:
            self.findings += access.of_porter(porter)
        need = needs.of_job(
            self.job, self.chosen, {one.name: one.survey for one in seen}, self._installation()
        )
        for one in seen:
            self.findings += hosts.of_host(one, need)
        self.findings += pairs.of_hosts(seen)
        self._between(seen)

    def _installation(self) -> Installation | None:
        try:
            return mpis.select(self.job.mpi, self.home, {**self.environ, **self.job.env})
        except (NotFoundError, PrepareError):
            return None  # `here` says it

    def _seen(self) -> list[Seen]:
        """What every host that was reached says of itself."""
        surveys = self._answers(lambda each: each.ask("survey", patience=_ASKED).values)
        names = {host.name for host in self.chosen}
        names |= {survey["hostname"] for survey in surveys.values()}
        self.porters = [each for each in self.porters if each.host.name in surveys]
        found = self._answers(lambda each: _examined(each, surveys[each.host.name], names))
        return list(found.values())

    def _answers(self, ask: Callable[[Porter], R]) -> dict[str, R]:
        """What every host answers, by its name; those that do not are findings."""
        with ThreadPoolExecutor(max(1, len(self.porters))) as pool:
            asked = [(porter, pool.submit(ask, porter)) for porter in self.porters]
        found = {}
        for porter, answer in asked:
            try:
                found[porter.host.name] = answer.result()
            except ShantyError as error:
                self.findings.append(_lost(porter, error))
        return found

    def _between(self, every: Sequence[Seen]) -> None:
        # two names of one machine have nothing between them
        seen = list({one.survey["instance"]: one for one in reversed(every)}.values())[::-1]
        porters = [one.porter for one in seen if one.porter is not None]
        if not porters:
            return
        self.say("comparing packages and MPIs" + ", trying ssh between hosts" * (len(seen) > 1))
        asking = (porters, self.job, self.home, self.environ)
        works: dict[str, Work] = {
            "packages": partial(software.packages, *asking),
            "the MPI": partial(software.mpi, *asking),
        }
        if len(seen) > 1:
            until = time.monotonic() + _BETWEEN
            works["ssh between hosts"] = lambda: list(pairs.between(seen, until))
        self.take(_begun(works), _BETWEEN + 1)
        if len(seen) > 1:  # last and alone: the other questions would disturb what is measured
            self.say("trying the networks between hosts")
            taken = self._installation()
            flavour = taken.flavour if taken is not None else mpis.DEFAULT
            network = partial(_network, seen, self.home, self.job, flavour)
            left = max(_LEAST, min(_NETWORK, self.until - time.monotonic()))
            self.take(_begun({"the network": network}), left)

    def take(self, answers: Mapping[str, Future[list[Finding]]], seconds: float) -> None:
        """Take what checks find within that time, or note why they could not be made."""
        until = time.monotonic() + seconds
        for what, answer in answers.items():
            try:
                self.findings += answer.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                self.unfinished.append(f"{what}: it took longer than {seconds:.0f} s")
            except ShantyError as error:
                self.unfinished.append(f"{what}: {error.what}")

    def close(self) -> None:
        """Let go of the hosts."""
        for porter in self.porters:
            porter.close(0.5)


def _begun(works: Mapping[str, Work]) -> dict[str, Future[list[Finding]]]:
    """Begin checks side by side; one that hangs is left behind."""
    pool = ThreadPoolExecutor(len(works))
    try:
        return {what: pool.submit(work) for what, work in works.items()}
    finally:
        pool.shutdown(wait=False)


def _fresh(host: Host) -> Transport:
    """A way to a host that shares no connection: one of yesterday would hide today's fault."""
    return contact.transport_to(host) if contact.is_here(host) else FreshSSH(host, _CONNECT)


def _examined(porter: Porter, survey: Mapping[str, Any], names: Collection[str]) -> Seen:
    before = time.time()
    health = porter.ask("health", names=sorted(names), patience=_ASKED).values
    ahead, doubt = hosts.clock(before, time.time(), health)
    return Seen(porter.host, survey, health, porter, ahead, doubt)


def _lost(porter: Porter, error: ShantyError) -> Finding:
    return Finding(
        "host-silent",
        Level.ERROR,
        porter.host.name,
        "it was logged in to, and then said nothing",
        "; ".join(filter(None, [error.what, error.why])),
        error.fix,
    )


@dataclass(frozen=True, slots=True)
class _Reached:
    """A host as `net.decide` wants it."""

    name: str
    porter: Porter
    survey: Mapping[str, Any]
    address: str


def _network(seen: Sequence[Seen], home: Path, job: JobSpec, flavour: str) -> list[Finding]:
    from shanty.carry.mpi.flavours import FLAVOURS
    from shanty.launch.net.decide import decide
    from shanty.launch.targets import flags, networks

    reached = [
        _Reached(one.name, one.porter, one.survey, (one.survey["ssh"] or {}).get("server", ""))
        for one in seen
        if one.porter is not None
    ]
    mpi = FLAVOURS[flavour]
    decision = decide(reached, home, ports=mpi.ports(job.env), fresh=True)
    surveys = {one.name: one.survey for one in seen}
    route = networks.usable(decision.route, mpi)
    found = [*decision.findings]
    if decision.route.rails and not route.rails:
        found.append(networks.ipv6_only(mpi, list(surveys)))
    return found + flags.check(flags.given(job, mpi), surveys, decision.joining, route)
