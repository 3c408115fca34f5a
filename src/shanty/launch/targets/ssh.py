"""Hosts that are reached by ssh: `shanty run --on a,b`. The first one is the lead host.

The machine at which the command is typed prepares them and then only watches: it may be closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shanty.launch.containers.options import IMAGE_MPI
from shanty.launch.machines import queue
from shanty.launch.network.survey import chosen, connected
from shanty.launch.network.topology import Route, SurveyedHost
from shanty.launch.provision import containers
from shanty.launch.provision.containers import Inside
from shanty.launch.provision.node import HostPlace, Ready
from shanty.launch.provision.provision import Bring, provision, to_bring
from shanty.launch.provision.session import HostSession, nodes_of, shared_out
from shanty.launch.run_mirror import RunMirror, forward_stdin, has_input
from shanty.launch.settings import Settings
from shanty.launch.targets import networks
from shanty.launch.targets.base import (
    Outline,
    Planned,
    Reply,
    Surroundings,
    begin_request,
    lost,
    mpi_head,
    plan_of,
    ranks_head,
    run_folder,
    scratch_of,
)
from shanty.launch.targets.elastic_support import HOSTS, Support
from shanty.launch.transport import connect, keys, reachability
from shanty.launch.transport.parallel import side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime import run_agents, site
from shanty.runtime.connections import worker_command
from shanty.runtime.counted import counted
from shanty.runtime.errors import NotFoundError, PrepareError, ShantyError
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Plan
from shanty.runtime.resolve import agent_files, settled
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import RunDir, storage_errors, write_json
from shanty.runtime.site import Host, Site, Submitter
from shanty.runtime.spec import HOST, JobSpec, Raw, State, Status

_FIRST_LOOK = 4.0  # seconds that `ps` waits for lead hosts; what is known is shown then
_OWN_KEY = 10.0  # seconds for a login by the lead host's own key


@dataclass(frozen=True, slots=True)
class Surveyed(SurveyedHost):
    """A host of a run as the survey found it.

    `place` is the host as the controller reaches it, `source` the lead host's own address on the
    way there.
    """

    place: HostPlace
    source: str = ""
    banner: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a survey found: the hosts, the networks between them, the run's MPI, what to bring.

    `insides` are containers on the hosts, where the run has an image.
    """

    hosts: tuple[Surveyed, ...]
    installation: Installation
    bring: Bring
    route: Route = networks.OPEN
    insides: tuple[Inside, ...] = ()

    def sessions(self) -> list[HostSession]:
        """The hosts, the lead host first."""
        insides: Sequence[Inside | None] = self.insides or [None] * len(self.hosts)
        return [
            HostSession(
                host.place._replace(interfaces=networks.interfaces_of(self.route, host.name)),
                host.survey,
                host.client,
                entered,
            )
            for host, entered in zip(self.hosts, insides, strict=True)
        ]

    def unprepared(self, job: JobSpec) -> list[Ready]:
        """What the hosts have before they are prepared, with the paths of this machine."""
        mine = (self.installation, self.bring.python, "", job.workdir)
        return [
            Ready(*mine, host.client.python, host.client.root, host.survey["path"])
            for host in self.hosts
        ]

    def plan(self, job: JobSpec, run: RunDir, settings: Settings, ready: Sequence[Ready]) -> Plan:
        """Decide where the ranks of `job` go; UsageError when they do not fit."""
        nodes = nodes_of(self.sessions(), ready, run.id, scratch_of(run))
        best = self.route.rails[0].networks if self.route.rails else ()
        plan = settled(plan_of(job, run, settings, nodes), job, nodes, {}, networks=best)
        network = networks.to_json(self.route)
        return plan._replace(attempt=plan.attempt._replace(network=network))


@dataclass(frozen=True)
class SshPlan(Planned):
    """A job on hosts, before anything is put there: its plan has the paths of this machine."""

    target: SshTarget
    facts: Facts
    elastic: ClassVar[Support] = HOSTS
    plan: Plan
    takes_long: ClassVar[bool] = True

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""
        return self.plan.attempt.ranks

    def outline(self) -> Outline:
        """What would be run."""
        facts = self.facts
        where = "the image's own" if self.job.mpi == IMAGE_MPI else "put on every host"
        heads = [mpi_head(facts.installation, where)]
        for one in facts.insides[:1]:
            heads.append(("image", f"{one.image.name}, by {one.container.engine}"))
        for index, host in enumerate(facts.hosts):
            role = " (lead)" if index == 0 else ""
            heads.append(
                ("host", f"{host.name}{role}: {counted(host.place.slots, 'slot')}, {host.address}")
            )
        if facts.route.rails:
            heads.append(("network", networks.described(facts.route)))
        heads.append(ranks_head(self.ranks, spares=self.job.spares))
        heads.append(("python", f"{facts.bring.python}, or the same made there (--packages)"))
        script = [f"cat > hostfile <<'END'\n{self.hostfile()}END", shlex.join(self._shown())]
        return Outline(heads, script)

    def _shown(self) -> list[str]:
        """The launcher's line, with the host file that stands above it."""
        command, hostfile = self.job.command, self.plan.attempt.layout.hostfile
        if isinstance(command, Raw):
            return ["sh", "-c", *command.argv] if command.shell else list(command.argv)
        return ["hostfile" if word == hostfile else word for word in self.plan.attempt.argv]

    def hostfile(self) -> str:
        """The text of the run's host file."""
        text, _ = agent_files(self.plan)["hostfile"]
        return text

    def _submit(self, stdin: int) -> None:
        self.target.submit(self, stdin)

    def stand_by(self) -> None:
        """Let the lead host know that this process starts the next attempt if it is lost."""
        self.target.stand_by(self.run)

    def hosts_left(self, status: Status) -> tuple[Host, ...]:
        """Return the hosts that are left where the lead host was lost; none otherwise."""
        return self.target.hosts_left(self.run, status)

    def drop(self) -> None:
        """Close the connections to its hosts: it will not be submitted."""
        _close(host.client for host in self.facts.hosts)


class SshTarget:
    """Runs on the hosts that a job names."""

    scheme: ClassVar[str] = "ssh"

    def __init__(self, here: Surroundings) -> None:
        self.here = here
        self._links: dict[str, RunMirror] = {}

    # ------------------------------------------------------------------------ planning

    def plan(self, job: JobSpec, run: RunDir) -> SshPlan:
        """Find out what is there for `job` and decide where it goes; nothing is put there yet."""
        facts = self.survey(job)
        try:
            plan = facts.plan(job, run, self.here.settings, facts.unprepared(job))
            return SshPlan(job, run, self, facts, plan)
        except BaseException:
            _close(host.client for host in facts.hosts)
            raise

    def survey(self, job: JobSpec) -> Facts:
        """Reach all hosts and see what they are; PrepareError names those that fail."""
        from shanty.launch.doctor import check

        here = self.here
        hosts = chosen(job.on, job.hostfile, here.home)
        bring = to_bring(job, here)
        clients = connected(hosts, here.home, here.say, terminal=here.terminal)
        try:
            seen = side_by_side(clients, check.ask)
            surveys = {name: one.survey for name, one in seen.items()}
            surveyed = self._surveyed(hosts, clients, surveys)
            insides = containers.enter_all(job, clients, here)
            installation = bring.installation or containers.own_mpis(insides)[0]
            check.quick(job, list(seen.values()), installation, here.warn)
            route = networks.chosen(job, installation, surveyed, here.home, here.say, here.warn)
        except BaseException:
            _close(clients)
            raise
        return Facts(tuple(surveyed), installation, bring, route, tuple(insides))

    def _surveyed(
        self,
        hosts: Sequence[Host],
        clients: Sequence[RpcClient],
        surveys: Mapping[str, Mapping[str, Any]],
    ) -> list[Surveyed]:
        reachability.distinct(hosts, surveys)
        cores = shared_out(surveys)
        gpus = any(surveys[host.name]["gpus"] for host in hosts)
        found = reachability.to_hosts(hosts, clients[0], surveys)
        source = next((way["source"] for way in found[1:]), "")
        surveyed = []
        for number, (host, client, way) in enumerate(zip(hosts, clients, found, strict=True)):
            survey = surveys[host.name]
            slots = host.slots
            if slots is None:
                slots = len(survey["gpus"]) if gpus else int(survey["cores"])
            address = way["peer"] or source or reachability.own_address(survey)
            names = {host.name, survey["hostname"], survey["hostname"].partition(".")[0]}
            names |= {address, way["address"], *reachability.addresses(survey)}
            place = HostPlace(
                host.name,
                address,
                slots,
                cores[host.name],
                tuple(sorted(filter(None, names))),
                {
                    "kind": "ssh",
                    "user": survey["user"],
                    "port": int(way["port"]),
                    "alias": keys.alias(number),
                },
                limit=survey["limit"],
                gpus=gpus and host.slots is None,
            )
            own = (place, way["source"], way["banner"])
            surveyed.append(Surveyed(host.name, client, survey, address, *own))
        return surveyed

    # ---------------------------------------------------------------------- submitting

    def submit(self, planned: SshPlan, stdin: int) -> None:
        """Put on the hosts what is missing there, and start the lead host's agents."""
        run, clients = planned.run, [host.client for host in planned.facts.hosts]
        feeds = has_input(stdin)
        with run_folder(run, planned.job, None if planned.raw else planned.ranks):
            with storage_errors(run.path):
                run.hostfile.write_text(planned.hostfile())
                if queue.waiting(run) is None:  # else it is in the queue until it has begun
                    record = run_agents.agents_record(submitter=os.getpid())
                    submitter = Submitter.from_record(record)
                    site.write(run, _site(planned)._replace(submitter=submitter))
            ready = provision(
                planned.facts.sessions(), planned.job, planned.facts.bring, run.id, self.here
            )
            plan = planned.facts.plan(planned.job, run, self.here.settings, ready)
            with storage_errors(run.path):
                write_json(run.plan, plan.to_json())
            self._begin(planned, plan, feeds=feeds)
        if feeds:
            forward_stdin(clients[0].host, run.id, stdin)
        named = [client.host for client in clients]
        self._links[run.id] = RunMirror(run, named, clients).start()

    def _begin(self, planned: SshPlan, plan: Plan, *, feeds: bool) -> None:
        run = planned.run
        lead, *workers = planned.facts.hosts
        files = {}
        self.here.say("")
        try:
            if workers:
                pair = keys.make_pair(run.path)
                refused = self._authorize(planned, plan, pair)
                known = [
                    line
                    for node, host in zip(plan.workers, workers, strict=True)
                    for line in reachability.known_lines(
                        host.client.host, host.client, node.connection["alias"]
                    )
                ]
                files["key"] = (pair.private.decode(), 0o600)
                files["known_hosts"] = ("\n".join(known) + "\n", 0o644)
                if refused:
                    plan = _by_own_keys(plan, lead.client, refused, files["known_hosts"][0])
            queue.begins(run)
            begin = {**begin_request(plan, planned.job, run), "stdin": feeds}
            begin["files"].update(files)
            begin["files"]["events.jsonl"] = (_sent(planned, len(json.dumps(begin))), 0o644)
            lead.client.ask("begin-run", **begin)
            if queue.waiting(run) is not None:
                queue.begun(run, _site(planned))
        except BaseException:  # Ctrl-C too, and the lead may have been started before it
            stop = {"kind": "stop", "grace": 0.0}
            with contextlib.suppress(ShantyError):
                lead.client.ask("ask-run", run=run.id, request=stop, patience=5.0)
            for number, host in enumerate(workers, 1):
                with contextlib.suppress(ShantyError):
                    host.client.ask("revoke", run=run.id, index=number, patience=5.0)
            raise

    def _authorize(self, planned: SshPlan, plan: Plan, pair: keys.KeyPair) -> dict[str, str]:
        """Have the workers accept the run's key; returns why, for each that cannot."""
        from shanty.runtime.node.worker_agent import KEY_LIFE

        workers = planned.facts.hosts[1:]
        pairs = {host.name: (host, node) for host, node in zip(workers, plan.workers, strict=True)}

        def authorize(client: RpcClient) -> tuple[list[str], str]:
            host, node = pairs[client.host.name]
            lacking = keys.options_lacking(host.banner)
            args: dict[str, Any] = {
                "run": plan.id,
                "index": node.number,
                "key": pair.public,
                "command": shlex.join(worker_command(node)),
                "from": [host.source],
                "seconds": KEY_LIFE,
                "without": list(lacking),
            }
            answer = client.ask("authorize", **args).values
            findings = list(answer["findings"])
            if lacking:
                findings.append(
                    f"its sshd ({host.banner}) does not know {', '.join(lacking)} in "
                    "authorized_keys, so the run's key is accepted without"
                )
            return findings, answer["refused"]

        answers = side_by_side([host.client for host in workers], authorize)
        for name, (findings, _) in answers.items():
            for finding in findings:
                self.here.warn(f"{name}: {finding}")
        return {name: why for name, (_, why) in answers.items() if why}

    # ----------------------------------------------------------------------- following

    def follow(self, run: RunDir, mirror: RunMirror) -> None:
        """Take over a mirror of a run that has been begun elsewhere."""
        self._links[run.id] = mirror

    def stand_by(self, run: RunDir) -> None:
        """Let the lead host know that this process starts the next attempt if it is lost."""
        self._link(run).stands_by = True

    def hosts_left(self, run: RunDir, status: Status) -> tuple[Host, ...]:
        """Return the hosts that are left where the lead host was lost; none otherwise.

        Where it has lost the run's agents, as after a restart, it is among them.
        """
        if status.failure is None or status.failure.cause != HOST or self._link(run).folder_lost:
            return ()
        if status.state is not State.LOST:
            return self._link(run).hosts_left
        found = connect.attempt(site.hosts_of(run), terminal=False)
        clients = [each for each in found if isinstance(each, RpcClient)]
        _close(clients)
        return tuple(client.host for client in clients)

    def _link(self, run: RunDir) -> RunMirror:
        if run.id not in self._links:
            self._links[run.id] = RunMirror(run, site.hosts_of(run)).start()
        return self._links[run.id]

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand, as far as their lead hosts can be reached."""
        until = time.monotonic() + _FIRST_LOOK  # they all look at the same time
        found = {run: read_status(run) for run in runs}
        links = {}
        for run, status in found.items():
            if not status.state.final or run.id in self._links:
                try:
                    links[run] = self._link(run)
                except NotFoundError as error:
                    found[run] = lost(run, error)
        for run, link in links.items():
            found[run] = link.status(max(0.0, until - time.monotonic()))
        return found

    def _ask(self, run: RunDir, kind: str, **more: Any) -> Reply:
        """Put a request to the controller; NotFoundError where the run's hosts are not known."""
        ended = read_status(run).state.final
        if ended or self._link(run).status(_FIRST_LOOK).state.final:
            return Reply(kind == "stop", "the run has ended")
        return Reply(**self._link(run).ask({"kind": kind, **more}))

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, unless the run has ended."""
        return self._ask(run, "stop", grace=grace)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return self._ask(run, "stacks")

    def signal(self, run: RunDir, number: int) -> Reply:
        """Send a signal to every rank that catches it."""
        return self._ask(run, "warn", signal=number)


def _by_own_keys(plan: Plan, lead: RpcClient, refused: Mapping[str, str], known: str) -> Plan:
    """The plan with the lead host's own keys for hosts that do not accept a run's key.

    PrepareError where a host does not accept these either. `known` is the text of a known_hosts
    file.
    """
    workers = [node for node in plan.workers if node.name in refused]
    there = [{**node.connection, "address": node.address} for node in workers]
    asked: dict[str, Any] = {"key": "", "known_hosts": known, "hosts": there, "timeout": _OWN_KEY}
    answers = lead.ask("try-key", **asked, patience=_OWN_KEY + _FIRST_LOOK).values["tries"]
    for node, answer in zip(workers, answers, strict=True):
        if answer["code"] != 0:
            raise PrepareError(
                f"host {node.name} does not let the lead host {plan.lead.name} in",
                f"{refused[node.name]}; by a key of its own: {answer['text'] or 'no answer'}",
                f"make the file writable, or let {plan.lead.name} log in there by a key of its own",
            )
    own = {node.number: {**node.connection, "own": True} for node in workers}
    nodes = [
        node._replace(connection=own.get(node.number, node.connection))
        for node in plan.attempt.nodes
    ]
    return plan._replace(attempt=plan.attempt._replace(nodes=tuple(nodes)))


def _site(planned: SshPlan) -> Site:
    """Where the run is: its hosts."""
    return Site(hosts=tuple(host.client.host for host in planned.facts.hosts))


def _sent(planned: SshPlan, begin: int) -> str:
    """The run's first event: the bytes that each host was sent; `begin` are the lead's last."""
    hosts = planned.facts.hosts
    sent = {host.name: host.client.bytes_sent for host in hosts}
    sent[hosts[0].name] += begin
    return json.dumps({"time": time.time(), "event": "prepared", "sent": sent}) + "\n"


def _close(clients: Iterable[RpcClient]) -> None:
    """Close connections, where this process goes on without them."""
    for client in clients:
        client.close(0.5)
