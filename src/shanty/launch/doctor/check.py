"""Examines hosts: all checks side by side, each with a time limit, independent of other failures.

`check` calls `hosts` (facts of one host), `pairs` (facts of several hosts, and their attempts to
reach each other), `this_machine`, and the choice of networks (`network.selection`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shanty.launch import interpreter, mpis
from shanty.launch.content.content_store import own_mpi
from shanty.launch.doctor import hosts, pairs, reaching, this_machine
from shanty.launch.doctor.facts import Seen, need_of
from shanty.launch.finding import Finding, Level, tell, without_consequences
from shanty.launch.network import user_settings
from shanty.launch.network.selection import decide
from shanty.launch.network.survey import addressed
from shanty.launch.transport.parallel import Say, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import NotFoundError, PrepareError, ShantyError
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec

_ASKED = 8.0  # seconds for one request to a host
_AT_ONCE = 64  # hosts that get requests side by side
_BETWEEN = 5.0  # seconds for what hosts try between each other
_NETWORK = 10.0  # seconds for their networks
_LEAST = 2.0  # seconds without which slow checks are not begun
_AFTERWARDS = 3.0  # seconds that are reserved for the checks after the logins
_CLOSING = 1.0  # seconds to close the connections
LIMIT = 18.0  # seconds for everything
_LOCAL = 8.0  # seconds for this machine, after all others
_ALL_NAMES = 16  # hosts up to which each looks up the names of all, not only of the lead
_PACKAGES_LEVELS = {"check": Level.ERROR, "none": Level.WARNING}  # otherwise a run installs them
R = TypeVar("R")
Work = Callable[[], list[Finding]]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an examination."""

    hosts: tuple[str, ...]  # the names of the examined hosts, "" for this machine
    findings: tuple[Finding, ...]
    unfinished: tuple[str, ...]  # each check that could not be made, and why
    seconds: float
    unseen: tuple[str, ...] = ()  # the names of hosts for which the time did not suffice

    @property
    def healthy(self) -> bool:
        """True if all hosts were examined and nothing prevents a run from working."""
        return not self.unseen and all(each.level is not Level.ERROR for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON."""
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
    """Examines the hosts for a job, and this machine; never prompts the user.

    `chosen` are the hosts that the job names, none for a run on this machine; `holds_ranks` says
    that this machine is one of them. `home` is shanty's folder here; `say` gets texts about the
    progress, "" at the end. It takes hardly more than `limit` seconds.

    shanty's own code is put on the hosts, and stays. Other changes are undone within seconds: a key
    for one command in authorized_keys, and test files.
    """
    began = time.monotonic()
    examination = _Examination(job, chosen, home, environ, say, began + limit - _CLOSING)
    own = partial(this_machine.findings, job, home, environ, holds_ranks=holds_ranks)
    try:
        local = _begun({"this machine": own})
        if chosen:
            examination.of_hosts()
        examination.take(local, _LOCAL)
    finally:
        examination.close()
        say("")
    named = [*([""] if holds_ranks else []), *(host.name for host in chosen)]
    order, levels = {name: index for index, name in enumerate(["", *named])}, list(Level)
    found = sorted(
        without_consequences(examination.findings),
        key=lambda each: (levels.index(each.level), order.get(each.host, len(order)), each.code),
    )
    return Report(
        tuple(name for name in named if name not in examination.unseen),
        tuple(dict.fromkeys(found)),
        tuple(examination.unfinished),
        time.monotonic() - began,
        tuple(examination.unseen),
    )


def ask(client: RpcClient) -> Seen:
    """Asks a host of a run for its survey, and measures how far its clock is off."""
    before = time.time()
    survey = client.ask("survey").values
    after = time.time()
    # Its clock was read at some time between, which is the uncertainty.
    ahead, doubt = hosts.clock(before, after, {"time": survey["time"], "took": 0.0})
    return Seen(client.host, survey, {}, client, ahead, doubt)


def quick(job: JobSpec, seen: Sequence[Seen], installation: Installation, warn: Say) -> None:
    """Checks the distinct hosts of a run by their surveys; FoundError if it could not work."""
    surveys = {one.name: one.survey for one in seen}
    need = need_of(job, [one.host for one in seen], surveys, installation)
    found = [each for one in seen for each in hosts.of_host(one, need)]
    found = without_consequences([*found, *pairs.of_hosts(seen)])
    for index, each in enumerate(found):  # too few GPUs for a run that did not request any
        if each.code == "gpus-short" and job.gpus_per_rank is None:
            found[index] = replace(each, level=Level.WARNING)
    tell(found, warn)


@dataclass
class _Examination:
    job: JobSpec
    chosen: Sequence[Host]
    home: Path
    environ: Mapping[str, str]
    say: Say
    until: float  # by time.monotonic()
    findings: list[Finding] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    held: list[RpcClient] = field(default_factory=list)  # of all hosts that were reached
    clients: list[RpcClient] = field(default_factory=list)  # of the hosts that answer

    def of_hosts(self) -> None:
        self.say("reaching the hosts")
        self.clients, refused, late = reaching.reached(self.chosen, self.until - _AFTERWARDS)
        self.held = self.clients
        self._unseen("the way to", late)
        self.say("examining each host")
        what = "how others see the hosts that do not answer"
        absent = _begun({what: partial(reaching.explain, refused, self.clients)})[what]
        seen = self._seen()
        try:
            self.findings += absent.result(min(_ASKED, self._left))
        except TimeoutError:
            self.findings += reaching.explain(refused, None)
            self._no_time(what)
        for client in self.clients:
            self.findings += reaching.shell_noise(client)
        installation: Installation | None = None
        with suppress(NotFoundError, PrepareError):  # `this_machine` reports it
            environ = {**self.environ, **self.job.env}
            installation = mpis.select(self.job.mpi, self.home, environ)
        surveys = {one.name: one.survey for one in seen}
        need = need_of(self.job, self.chosen, surveys, installation)
        for one in seen:
            self.findings += hosts.of_host(one, need)
        self.findings += pairs.of_hosts(seen)
        self._between(pairs.distinct_machines(seen), installation)

    @property
    def _left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def _no_time(self, what: str) -> None:
        self.unfinished.append(f"{what}: the time did not suffice")

    def _unseen(self, what: str, names: Sequence[str]) -> None:
        if names:
            self._no_time(f"{what} {', '.join(names)}")
            self.unseen += names

    def _seen(self) -> list[Seen]:
        surveys = self._answers(
            "the survey", lambda each, seconds: each.ask("survey", patience=seconds).values
        )
        self.clients = [each for each in self.clients if each.host.name in surveys]
        own = {name: {name, str(survey["hostname"])} for name, survey in surveys.items()}
        names = _names_for(own)

        def look(client: RpcClient, seconds: float) -> Seen:
            name, before = client.host.name, time.time()
            health = client.ask("health", names=sorted(names[name]), patience=seconds).values
            ahead, doubt = hosts.clock(before, time.time(), health)
            return Seen(client.host, surveys[name], health, client, ahead, doubt)

        return list(self._answers("the health", look).values())

    def _answers(self, what: str, ask: Callable[[RpcClient, float], R]) -> dict[str, R]:
        """Returns the answer of every host, by its name; failures become findings.

        `ask` gets how many seconds it may take. Silence is a finding only after a fair time.
        """

        def asked(client: RpcClient) -> R | ShantyError | None:
            seconds = min(_ASKED, self._left)
            try:
                return ask(client, seconds) if seconds else None
            except ShantyError as error:
                return error if self._left else None

        found: dict[str, R] = {}
        late = []
        for client, value in zip(self.clients, _each(asked, self.clients), strict=True):
            name = client.host.name
            if value is None:
                late.append(name)
            elif isinstance(value, ShantyError):
                seen = "; ".join(filter(None, [value.what, value.why]))
                what = "it did not answer after the login"
                lost = Finding("host-silent", Level.ERROR, name, what, seen, value.fix)
                self.findings.append(lost)
            else:
                found[name] = value
        self._unseen(f"{what} of", late)
        return found

    def _between(self, seen: Sequence[Seen], installation: Installation | None) -> None:
        clients = [one.client for one in seen if one.client is not None]
        if not clients:
            return
        self.say("comparing packages and MPIs" + ", trying ssh between hosts" * (len(seen) > 1))
        works: dict[str, Work] = {
            "packages": partial(_packages, clients, self.job, self.home, self.environ),
            "the MPI": partial(_mpi, clients, installation),
        }
        if len(seen) > 1:
            until = min(time.monotonic() + _BETWEEN, self.until)
            works["ssh between hosts"] = lambda: list(pairs.between(seen, until))
        self.take(_begun(works), _BETWEEN + 1)
        if len(seen) > 1:  # last and alone, since other requests would disturb the measurement
            if self._left < _LEAST:
                self._no_time("the network")
                return
            self.say("trying the networks between hosts")
            flavour = FLAVOURS[installation.flavour if installation is not None else mpis.DEFAULT]
            self.take(_begun({"the network": partial(self._network, seen, flavour)}), _NETWORK)

    def _network(self, seen: Sequence[Seen], flavour: Flavour) -> list[Finding]:
        surveys = {one.name: one.survey for one in seen}
        clients = [one.client for one in seen if one.client is not None]
        blocked = any(each.code == "lead-blocked" for each in self.findings)
        reached = addressed(clients, surveys, blocked=blocked)
        choice = decide(reached, self.home, ports=flavour.ports(self.job.env), fresh=True)
        return user_settings.settled(choice, self.job, flavour, surveys)[1]

    def take(self, answers: Mapping[str, Future[list[Finding]]], seconds: float) -> None:
        """Takes the findings of checks within that time and the limit; notes unfinished checks."""
        seconds = min(seconds, self._left)
        until = time.monotonic() + seconds
        for what, answer in answers.items():
            try:
                self.findings += answer.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                if self._left:
                    self.unfinished.append(f"{what}: it took longer than {seconds:.0f} s")
                else:
                    self._no_time(what)
            except ShantyError as error:
                self.unfinished.append(f"{what}: {error.what}")
            except Exception as error:  # noqa: BLE001  # a bug must not hide other findings
                self.unfinished.append(f"{what}: a bug in shanty: {error!r}")

    def close(self) -> None:
        _each(lambda client: client.close(0.5), self.held)


def _each(work: Callable[[RpcClient], R], clients: Sequence[RpcClient]) -> list[R]:
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(clients)))) as pool:
        return list(pool.map(work, clients))


def _begun(works: Mapping[str, Work]) -> dict[str, Future[list[Finding]]]:
    """Begins checks side by side; callers do not wait for checks that hang."""
    pool = ThreadPoolExecutor(len(works))
    try:
        return {what: pool.submit(work) for what, work in works.items()}
    finally:
        pool.shutdown(wait=False)


def _names_for(own: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Returns the names that each host is to look up; `own` are those of each, the lead's first."""
    every = {name for names in own.values() for name in names}
    if len(own) <= _ALL_NAMES:
        return dict.fromkeys(own, every)
    lead = next(iter(own.values()))  # with many hosts, all names would be too many
    return {host: {*lead, *names} for host, names in own.items()}


def _mpi(clients: Sequence[RpcClient], installation: Installation | None) -> list[Finding]:
    """Checks that the hosts have the job's MPI, if shanty does not bring it."""
    if installation is None or installation.origin != "system":
        return []
    found = side_by_side(clients, lambda client: own_mpi(client, installation))
    return [each for each in found.values() if isinstance(each, Finding)]


def _packages(
    clients: Sequence[RpcClient], job: JobSpec, home: Path, environ: Mapping[str, str]
) -> list[Finding]:
    """Checks that the hosts' Python has the packages that the job's Python has here."""
    from shanty.launch.content import environment

    python = interpreter.choose(job.python, Path(job.workdir), {**environ, **job.env})
    own = environment.local_environment(python, home)
    found = environment.check(clients, own, environment.mpi4py_tags())
    return [
        Finding(
            "packages-differ",
            _PACKAGES_LEVELS.get(job.packages or "", Level.NOTE),
            name,
            ("1 package" if len(each.rows) == 1 else f"{len(each.rows)} packages")
            + " of its Python differ from those here",
            ", ".join(
                f"{row.name} {row.there or 'missing'}, here {row.here}" for row in each.rows[:5]
            )
            + (", …" if len(each.rows) > 5 else ""),
            "--packages sync makes the same environment there; a run does so by default",
            fixable=job.packages in (None, "sync"),
        )
        for name, each in found.items()
        if each.rows
    ]
