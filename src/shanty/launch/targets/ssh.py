"""Hosts that are reached by ssh: `shanty run --on a,b`. The first one is the lead host.

The machine at which the command is typed prepares them and then only watches: it may be closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from shanty.launch import interpreter, mpis
from shanty.launch.cluster import keys, reachability
from shanty.launch.cluster.parallel import side_by_side
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.cluster.run_mirror import RunMirror, forward_stdin, has_input
from shanty.launch.containers import inside
from shanty.launch.containers.inside import Contained, Inside, own_mpis
from shanty.launch.containers.options import IMAGE_MPI, refuse_without_python
from shanty.launch.host import Host
from shanty.launch.machines import queue
from shanty.launch.network.survey import chosen, connected
from shanty.launch.network.topology import Route, SurveyedHost
from shanty.launch.settings import Settings
from shanty.launch.targets import networks
from shanty.launch.targets.base import (
    Planned,
    Reply,
    Surroundings,
    lost,
    plan_of,
    run_folder,
    scratch_of,
)
from shanty.runtime.agent import control
from shanty.runtime.agent.connections import worker_command
from shanty.runtime.agent.control import read_status
from shanty.runtime.errors import NotFoundError, PrepareError, ShantyError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Attempt, Node, Plan
from shanty.runtime.resolve import AttemptSettings, resolve, shim_scripts
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.spec import JobSpec, Raw, Status

if TYPE_CHECKING:
    from shanty.launch.cluster.prepare import Prepared

_FIRST_LOOK = 4.0  # seconds that `ps` waits for lead hosts; what is known is shown then
_OWN_KEY = 10.0  # seconds for a login by the lead host's own key
_UNUSED = 30  # days after which a host gives up what no run has asked for


@dataclass(frozen=True, slots=True)
class Surveyed(SurveyedHost):
    """A host of a run as the survey found it.

    `cores` are those that it has for itself. `login` and `port` are for the lead's ssh; `source`
    is the lead's own address on that way; `names` are all that it may be called.
    """

    host: Host
    cores: int
    slots: int
    login: str
    port: int
    source: str
    names: tuple[str, ...]
    banner: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a survey found: the hosts, the networks between them, the MPI and Python to bring.

    `insides` are containers on the hosts, where the run has an image.
    """

    hosts: tuple[Surveyed, ...]
    installation: Installation
    python: str
    route: Route = networks.OPEN
    insides: tuple[Inside, ...] = ()


@dataclass(frozen=True)
class SshPlan(Planned):
    """A job on hosts, before anything is put there: its attempt has the paths of this machine."""

    target: SshTarget
    facts: Facts
    attempt: Attempt
    takes_long: ClassVar[bool] = True

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""
        return self.attempt.ranks

    def render(self) -> str:
        """What would be run, for a person to read."""
        installation = self.facts.installation
        title = FLAVOURS[installation.flavour].title
        where = "the image's own" if self.job.mpi == IMAGE_MPI else "put on every host"
        lines = [f"# MPI     {title} {installation.version}, {where}"]
        for one in self.facts.insides[:1]:
            lines.append(f"# image   {one.image.name}, by {one.container.engine}")
        for index, host in enumerate(self.facts.hosts):
            role = " (lead)" if index == 0 else ""
            lines.append(f"# host    {host.name}{role}: {host.slots} slots, {host.address}")
        if self.facts.route.rails:
            lines.append(f"# network {networks.described(self.facts.route)}")
        lines += [
            f"# ranks   {self.ranks or 'as the command says'}",
            f"# python  {self.facts.python}, or the same made there (--env)",
            f"cat > hostfile <<'END'\n{self.hostfile()}END",
            shlex.join(self._shown()),
        ]
        return "\n".join(lines)

    def _shown(self) -> list[str]:
        """The launcher's line, with the host file that stands above it."""
        command, hostfile = self.job.command, self.attempt.layout.hostfile
        if isinstance(command, Raw):
            return ["sh", "-c", *command.argv] if command.shell else list(command.argv)
        return ["hostfile" if word == hostfile else word for word in self.attempt.argv]

    def hostfile(self) -> str:
        """The text of the run's host file."""
        flavour = FLAVOURS[self.facts.installation.flavour]
        return flavour.hostfile(self.attempt.layout.hosts)

    def prepared(
        self, prepared: Sequence[Prepared], contained: Sequence[Contained], settings: Settings
    ) -> Plan:
        """The plan that the agents read, once all hosts have what they need."""
        attempt = _attempt(self.job, self.facts, self.run, settings, prepared, contained)
        return plan_of(self.job, self.run, settings, attempt)

    def _submit(self, stdin: int) -> None:
        self.target.submit(self, stdin)

    def drop(self) -> None:
        """Close the connections to its hosts: it will not be submitted."""
        _close(host.client for host in self.facts.hosts)


def plan_on(
    target: SshTarget, facts: Facts, job: JobSpec, run: RunDir, settings: Settings
) -> SshPlan:
    """Decide where the ranks of `job` go; UsageError when they do not fit."""
    from shanty.launch.cluster.prepare import Prepared  # `ps` does without

    unprepared = [Prepared(facts.installation, facts.python, job.workdir, "") for _ in facts.hosts]
    attempt = _attempt(job, facts, run, settings, unprepared)
    return SshPlan(job, run, target, facts, attempt)


def _attempt(
    job: JobSpec,
    facts: Facts,
    run: RunDir,
    settings: Settings,
    prepared: Sequence[Prepared],
    contained: Sequence[Contained] = (),
) -> Attempt:
    nodes = [
        _node(number, host, facts.route, run, there)
        for number, (host, there) in enumerate(zip(facts.hosts, prepared, strict=True))
    ]
    if contained:
        nodes = [one.node(node) for one, node in zip(contained, nodes, strict=True)]
        refuse_without_python(job, nodes)
    best = facts.route.rails[0].networks if facts.route.rails else ()
    attempt = resolve(
        job,
        nodes,
        AttemptSettings(
            run=run.id,
            scratch=scratch_of(run),
            scripted=True,
            log_limit=settings.log_limit,
            networks=best,
            given=job.env,
        ),
    )
    return attempt._replace(network=networks.to_json(facts.route))


def _node(number: int, host: Surveyed, route: Route, run: RunDir, there: Prepared) -> Node:
    """A host as its agents are to know it."""
    client = host.client
    linux = host.survey["system"] == "Linux"
    return Node(
        number=number,
        name=host.name,
        address=host.address,
        slots=host.slots,
        cores=host.cores,
        run_dir=str(PurePosixPath(client.home, "work", f"{run.id}.{number}")),
        workdir=there.workdir,
        python=there.python,
        agent_python=client.python,
        package=client.root,
        mpi=asdict(there.installation),
        names=host.names,
        connection={
            "kind": "ssh",
            "user": host.login,
            "port": host.port,
            "alias": keys.alias(number),
        },
        search_path=host.survey["path"],
        mpi4py=there.mpi4py,
        segments=f"/dev/shm/{PurePosixPath(scratch_of(run)).name}" if linux else "",
        fabric=bool(host.survey["fabrics"]),
        interfaces=networks.interfaces_of(route, host.name),
    )


def shared_out(surveys: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The cores that each host has for itself, by its name.

    Hosts that run under one kernel (containers, a lab) may each see all of its cores.
    """
    kernels: dict[str, list[Mapping[str, Any]]] = {}
    for name, survey in surveys.items():
        kernels.setdefault(survey["boot"] or name, []).append(survey)
    found = {}
    for name, survey in surveys.items():
        seen = sum(each["cores"] for each in kernels[survey["boot"] or name])
        own = survey["cores"] * survey["machine_cores"] // max(seen, survey["machine_cores"])
        found[name] = max(1, own)
    return found


class SshTarget:
    """Runs on the hosts that a job names; `say` hears what is being done, `warn`
    what is not as it should be."""

    scheme: ClassVar[str] = "ssh"

    def __init__(self, here: Surroundings) -> None:
        self.home, self.environ, self.settings = here.home, here.environ, here.settings
        self._say, self._warn, self._terminal = here.say, here.warn, here.terminal
        self._brings = here.brings
        self._links: dict[str, RunMirror] = {}

    # ------------------------------------------------------------------------ planning

    def plan(self, job: JobSpec, run: RunDir) -> SshPlan:
        """Find out what is there for `job` and decide where it goes; nothing is put there yet."""
        facts = self.survey(job)
        try:
            return plan_on(self, facts, job, run, self.settings)
        except BaseException:
            _close(host.client for host in facts.hosts)
            raise

    def survey(self, job: JobSpec) -> Facts:
        """Reach all hosts and see what they are; PrepareError names those that fail."""
        from shanty.launch.doctor import check

        hosts = chosen(job.on, job.hostfile, self.home)
        environ = {**self.environ, **job.env}
        installation = None
        if job.mpi != IMAGE_MPI:
            installation = mpis.select(job.mpi, self.home, environ)
        python = interpreter.choose(job.python, Path(job.workdir), environ)
        clients = connected(hosts, self.home, self._say, terminal=self._terminal)
        try:
            seen = side_by_side(clients, check.ask)
            surveys = {name: one.survey for name, one in seen.items()}
            surveyed = self._surveyed(hosts, clients, surveys)
            insides: list[Inside] = []
            if job.image is not None:
                insides = inside.enter_all(
                    job, clients, self.home, self.environ, self._say, brings=self._brings
                )
            installation = installation or own_mpis(insides)[0]
            check.quick(job, list(seen.values()), installation, self._warn)
            route = networks.chosen(job, installation, surveyed, self.home, self._say, self._warn)
        except BaseException:
            _close(clients)
            raise
        return Facts(tuple(surveyed), installation, python, route, tuple(insides))

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
        found_hosts = []
        for host, client, way in zip(hosts, clients, found, strict=True):
            survey = surveys[host.name]
            slots = host.slots
            if slots is None:
                slots = len(survey["gpus"]) if gpus else int(survey["cores"])
            address = way["peer"] or source or reachability.own_address(survey)
            names = {host.name, survey["hostname"], survey["hostname"].partition(".")[0]}
            names |= {address, way["address"], *reachability.addresses(survey)}
            found_hosts.append(
                Surveyed(
                    host.name,
                    client,
                    survey,
                    address,
                    host,
                    cores[host.name],
                    slots,
                    survey["user"],
                    int(way["port"]),
                    way["source"],
                    tuple(sorted(filter(None, names))),
                    way["banner"],
                )
            )
        return found_hosts

    # ---------------------------------------------------------------------- submitting

    def submit(self, planned: SshPlan, stdin: int) -> None:
        """Put on the hosts what is missing there, and start the lead host's agents."""
        run, hosts = planned.run, planned.facts.hosts
        clients = [host.client for host in hosts]
        feeds = has_input(stdin)
        with run_folder(run, planned.job, None if planned.raw else planned.ranks):
            with storage_errors(run.path):
                run.hostfile.write_text(planned.hostfile())
                if queue.site_of(run) is None:  # else it is in the queue until it has begun
                    record = control.agents_record(submitter=os.getpid())
                    write_json(run.site, {**_site(planned), "submitter": record})
            side_by_side(clients, _sweep)
            if planned.facts.insides:
                side_by_side(clients, lambda client: client.ask("containers-sweep"))
                prepared, contained = self._prepare_containers(planned, clients)
            else:
                prepared, contained = self._prepare(planned, clients), []
            plan = planned.prepared(prepared, contained, self.settings)
            with storage_errors(run.path):
                write_json(run.plan, plan.to_json())
            self._begin(planned, plan, feeds=feeds)
        if feeds:
            forward_stdin(hosts[0].host, run.id, stdin)
        named = [host.host for host in hosts]
        self._links[run.id] = RunMirror(run, named, clients[0], clients[1:]).start()

    def _prepare(self, planned: SshPlan, clients: Sequence[RpcClient]) -> list[Prepared]:
        from shanty.launch.cluster.prepare import prepare

        job, run = planned.job, planned.run
        prepared = prepare(
            clients,
            planned.facts.installation,
            planned.facts.python,
            job,
            _users(run, clients),
            self.home,
            self.environ,
            self._say,
        )
        self._tell_notes(clients)
        return prepared

    def _prepare_containers(
        self, planned: SshPlan, clients: Sequence[RpcClient]
    ) -> tuple[list[Prepared], list[Contained]]:
        """Put the workspace on the hosts, and all else where their containers have it."""
        from shanty.launch.cluster.prepare import Prepared, place_workspace

        job, insides, facts = planned.job, planned.facts.insides, planned.facts
        placed = place_workspace(clients, job, _users(planned.run, clients), self.home, self._say)
        contained = inside.equip(
            insides,
            own_mpis(insides) if job.mpi == IMAGE_MPI else facts.installation,
            facts.python,
            job.environment,
            self.home,
            self.environ,
            self._say,
        )
        self._tell_notes([*clients, *(each.client for each in insides)])
        for each in insides:
            each.leave()
        prepared = [
            Prepared(one.installation, one.python, placed[client.host.name], one.mpi4py)
            for one, client in zip(contained, clients, strict=True)
        ]
        return prepared, contained

    def _tell_notes(self, clients: Sequence[RpcClient]) -> None:
        for client in clients:
            for what, fix in client.notes:
                self._warn(f"{client.host.name}: {what} ({fix})")

    def _begin(self, planned: SshPlan, plan: Plan, *, feeds: bool) -> None:
        run = planned.run
        lead, *workers = planned.facts.hosts
        shims = shim_scripts(plan.lead, raw=plan.raw, workers=bool(workers))
        files: dict[str, list[Any]] = {f"bin/{n}": [text, 0o755] for n, text in shims.items()}
        files["hostfile"] = [planned.hostfile(), 0o644]
        self._say("")
        try:
            if workers:
                pair = keys.make_pair(run.path)
                refused = self._authorize(planned, plan, pair)
                known = [
                    line
                    for node, host in zip(plan.workers, workers, strict=True)
                    for line in reachability.known_lines(
                        host.host, host.client, node.connection["alias"]
                    )
                ]
                files["key"] = [pair.private.decode(), 0o600]
                files["known_hosts"] = ["\n".join(known) + "\n", 0o644]
                if refused:
                    plan = _by_own_keys(plan, lead.client, refused, files["known_hosts"][0])
            queue.begins(run)
            begin: dict[str, Any] = {
                "run": run.id,
                "plan": plan.to_json(),
                "job": planned.job.to_json(),
                "status": read_json(run.status),
                "files": files,
                "stdin": feeds,
            }
            files["events.jsonl"] = [_sent(planned, len(json.dumps(begin))), 0o644]
            lead.client.ask("begin-run", **begin)
            if queue.site_of(run) is not None:
                queue.begun(run, _site(planned))
        except BaseException:  # Ctrl-C too, and the lead may have been started before it
            with contextlib.suppress(ShantyError):
                lead.client.ask("ask-run", run=run.id, request=_stop(0.0), patience=5.0)
            for number, host in enumerate(workers, 1):
                with contextlib.suppress(ShantyError):
                    host.client.ask("revoke", run=run.id, index=number, patience=5.0)
            raise

    def _authorize(self, planned: SshPlan, plan: Plan, pair: keys.KeyPair) -> dict[str, str]:
        """Have the workers let the run's key in; why, for each that cannot, by its name."""
        from shanty.runtime.agent.worker_agent import KEY_LIFE

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
                self._warn(f"{name}: {finding}")
        return {name: why for name, (_, why) in answers.items() if why}

    # ----------------------------------------------------------------------- following

    def follow(self, run: RunDir, mirror: RunMirror) -> None:
        """Take over a mirror of a run that has been begun elsewhere."""
        self._links[run.id] = mirror

    def _link(self, run: RunDir) -> RunMirror:
        if run.id not in self._links:
            hosts = []
            with contextlib.suppress(KeyError, TypeError):  # the next line says it
                hosts = [Host(**entry) for entry in (read_json(run.site) or {})["hosts"]]
            if not hosts:
                raise NotFoundError(f"{run.site} is damaged, so the run's hosts are not known")
            self._links[run.id] = RunMirror(run, hosts).start()
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

    def _has_ended(self, run: RunDir) -> bool:
        """NotFoundError where the run's hosts are not known."""
        known = read_status(run).state.final
        return known or self._link(run).status(_FIRST_LOOK).state.final

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run; one that has ended is no error."""
        if self._has_ended(run):
            return Reply(True, "the run has ended")
        return Reply(**self._link(run).ask(_stop(grace)))

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        if self._has_ended(run):
            return Reply(False, "the run has ended")
        return Reply(**self._link(run).ask({"kind": "stacks"}))

    def interrupt(self, run: RunDir) -> Reply:
        """Send SIGINT to every rank that catches it."""
        if self._has_ended(run):
            return Reply(False, "the run has ended")
        return Reply(**self._link(run).ask({"kind": "warn", "signal": signal.SIGINT.value}))


def _by_own_keys(plan: Plan, lead: RpcClient, refused: Mapping[str, str], known: str) -> Plan:
    """The plan with the lead host's own keys for hosts that let no run's key in.

    PrepareError where these do not let it in either. `known` is the text of a known_hosts file.
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


def _site(planned: SshPlan) -> dict[str, Any]:
    """Where the run is: what is known of its hosts."""
    return {"hosts": [asdict(host.host) for host in planned.facts.hosts]}


def _users(run: RunDir, clients: Sequence[RpcClient]) -> dict[str, str]:
    """The name of the run's part on each host, by the host's name."""
    return {client.host.name: f"{run.id}.{index}" for index, client in enumerate(clients)}


def _stop(grace: float) -> dict[str, Any]:
    return {"kind": "stop", "grace": grace}


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


def _sweep(client: RpcClient) -> None:
    """End what runs that crashed have left on a host."""
    client.ask("sweep-runs")
    client.ask("sweep-keys")
    client.ask("store-sweep", days=_UNUSED)
