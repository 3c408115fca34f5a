"""Hosts that are reached by ssh: `shanty run --on a,b`. The first one is the lead host.

The machine at which the command is typed prepares them and then only watches: it may be closed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from shanty.launch import interpreter, mpis
from shanty.launch.cluster import contact, inventory, keys, reachability, stdin_forward
from shanty.launch.cluster.host import Host
from shanty.launch.cluster.hostfiles import read_hostfile
from shanty.launch.cluster.mpi_provision import side_by_side
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.cluster.run_mirror import Link
from shanty.launch.doctor import quick
from shanty.launch.network.route import Route
from shanty.launch.settings import Settings
from shanty.launch.targets import networks, site
from shanty.launch.targets.base import Chunk, Facts, Handle, Reply, Stacks, Stop
from shanty.launch.targets.local import LocalTarget
from shanty.launch.targets.site import Node, SitePlan
from shanty.runtime.agent.worker_agent import KEY_LIFE
from shanty.runtime.errors import NotFoundError, ShantyError, UsageError
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.spec import JobSpec, Status

_FIRST_LOOK = 5.0  # seconds that `ps` waits for a lead host
_UNUSED = 30  # days after which a host gives up what no run has asked for


@dataclass(frozen=True, slots=True)
class SiteFacts(Facts):
    """What a survey found, the hosts with their RPC clients, and the networks between them."""

    nodes: tuple[Node, ...] = ()
    route: Route = networks.OPEN


class HostsTarget:
    """Runs on the hosts that a job names; `say` hears what is being done, `warn`
    what is not as it should be."""

    scheme: ClassVar[str] = "hosts"

    def __init__(
        self,
        home: Path,
        environ: Mapping[str, str],
        settings: Settings,
        say: Callable[[str], None] = lambda _text: None,
        warn: Callable[[str], None] = lambda _text: None,
        *,
        terminal: bool = False,
    ) -> None:
        self.home = home
        self.environ = environ
        self.settings = settings
        self._say = say
        self._warn = warn
        self._terminal = terminal
        self._local = LocalTarget(home, environ, settings)
        self._links: dict[str, Link] = {}

    # ------------------------------------------------------------------------ planning

    def survey(self, job: JobSpec) -> SiteFacts:
        """Reach all hosts and see what they are; PrepareError names those that fail."""
        hosts = self.hosts_of(job)
        environ = {**self.environ, **job.env}
        installation = mpis.select(job.mpi, self.home, environ)
        python = interpreter.choose(job.python, Path(job.workdir), environ)
        clients = contact.connect(
            hosts,
            terminal=self._terminal,
            progress=lambda host, text: self._say(f"{host.name}: {text}"),
            groups=inventory.names(self.home),
        )
        seen = side_by_side(clients, quick.ask)
        surveys = {name: one.survey for name, one in seen.items()}
        nodes = self._nodes(hosts, clients, surveys)
        quick.look(job, list(seen.values()), installation, self._warn)
        route = networks.chosen(job, installation, nodes, self.home, self._say, self._warn)
        return SiteFacts(
            hosts=site.host_slots(nodes),
            cores=min(node.cores for node in nodes),
            installation=installation,
            python=python,
            nodes=tuple(nodes),
            route=route,
        )

    def hosts_of(self, job: JobSpec) -> tuple[Host, ...]:
        """The hosts that a job names; UsageError where it names none, or one twice."""
        if job.hostfile:
            hosts = read_hostfile(Path(job.hostfile))
            if job.on:
                raise UsageError("--on and --hostfile both say on which hosts", fix="give one")
        else:
            hosts = inventory.resolve(job.on or "", self.home)
        return _distinct(inventory.recognised(hosts, self.home))

    def _nodes(
        self,
        hosts: Sequence[Host],
        clients: Sequence[RpcClient],
        surveys: Mapping[str, Mapping[str, Any]],
    ) -> list[Node]:
        reachability.distinct(hosts, surveys)
        cores = site.shared_out(surveys)
        gpus = any(surveys[host.name]["gpus"] for host in hosts)
        found = reachability.to_hosts(hosts, clients[0], surveys)
        source = next((way["source"] for way in found[1:]), "")
        nodes = []
        for host, client, way in zip(hosts, clients, found, strict=True):
            survey = surveys[host.name]
            slots = host.slots
            if slots is None:
                slots = len(survey["gpus"]) if gpus else int(survey["cores"])
            address = way["peer"] or source or reachability.own_address(survey)
            names = {host.name, survey["hostname"], survey["hostname"].partition(".")[0]}
            names |= {address, way["address"], *reachability.addresses(survey)}
            nodes.append(
                Node(
                    host,
                    client,
                    survey,
                    cores[host.name],
                    slots,
                    address,
                    survey["user"],
                    int(way["port"]),
                    way["source"],
                    tuple(sorted(filter(None, names))),
                    way["banner"],
                )
            )
        return nodes

    def plan(self, job: JobSpec, facts: SiteFacts, run: RunDir) -> SitePlan:
        """Decide where the ranks go; UsageError when they do not fit."""
        return site.make_site_plan(job, facts, facts.nodes, run, self.settings, facts.route)

    # ---------------------------------------------------------------------- submitting

    def submit(self, job: JobSpec, plan: SitePlan, run: RunDir, stdin: int) -> Handle:
        """Put on the hosts what is missing there, let the lead in, and start it."""
        if not Path(job.workdir).is_dir():
            raise NotFoundError(f"there is no folder {job.workdir}", "the job is to run in it")
        nodes = plan.nodes
        clients = [node.client for node in nodes]
        feeds = stdin_forward.has_input(stdin)
        run.create()
        try:
            with storage_errors(run.path):
                self._write_down(job, plan, run)
            side_by_side(clients, _sweep)
            values = self._prepare(job, plan, run, clients)
            with storage_errors(run.path):
                write_json(run.plan, values)
            self._begin(job, plan, run, values, feeds=feeds)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
            raise
        if feeds:
            stdin_forward.start(nodes[0].host, run.id, stdin)
        hosts = [node.host for node in nodes]
        self._links[run.id] = Link(run, hosts, clients[0], clients[1:]).start()
        return Handle(run)

    def _write_down(self, job: JobSpec, plan: SitePlan, run: RunDir) -> None:
        write_json(run.job, job.to_json())
        run.hostfile.write_text(plan.hostfile())
        write_json(run.site, {"hosts": [asdict(node.host) for node in plan.nodes]})
        status = Status(created=time.time(), ranks=None if plan.raw else plan.layout.ranks)
        write_json(run.status, status.to_json())

    def _prepare(
        self, job: JobSpec, plan: SitePlan, run: RunDir, clients: Sequence[RpcClient]
    ) -> dict[str, Any]:
        from shanty.launch.cluster.prepare import prepare

        prepared = prepare(
            clients,
            plan.installation,
            plan.python,
            Path(job.workdir),
            job.environment,
            {client.host.name: f"{run.id}.{index}" for index, client in enumerate(clients)},
            self.home,
            self.environ,
            self._say,
        )
        return plan.resolve(prepared)

    def _begin(
        self,
        job: JobSpec,
        plan: SitePlan,
        run: RunDir,
        values: Mapping[str, Any],
        *,
        feeds: bool,
    ) -> None:
        lead, *workers = plan.nodes
        files = site.shims(values, lead, run)
        files["hostfile"] = [plan.hostfile(), 0o644]
        self._say("")
        try:
            if workers:
                pair = keys.make_pair(run.path)
                self._let_in(plan, run, pair)
                known = [
                    line
                    for index, node in enumerate(plan.nodes)
                    if index > 0
                    for line in reachability.known_lines(node.host, node.client, site.alias(index))
                ]
                files["key"] = [pair.private.decode(), 0o600]
                files["known_hosts"] = ["\n".join(known) + "\n", 0o644]
            begin: dict[str, Any] = {
                "run": run.id,
                "plan": dict(values),
                "job": job.to_json(),
                "status": read_json(run.status),
                "files": files,
                "stdin": feeds,
            }
            files["events.jsonl"] = [_prepared(plan, len(json.dumps(begin))), 0o644]
            lead.client.ask("begin-run", **begin)
        except BaseException:  # Ctrl-C too, and the lead may have been started before it
            with contextlib.suppress(ShantyError):
                stop = Stop(0.0).to_json()
                lead.client.ask("ask-run", run=run.id, request=stop, patience=5.0)
            for index, node in enumerate(plan.nodes):
                if index > 0:
                    with contextlib.suppress(ShantyError):
                        node.client.ask("revoke", run=run.id, index=index, patience=5.0)
            raise

    def _let_in(self, plan: SitePlan, run: RunDir, pair: keys.KeyPair) -> None:
        indices = {node.name: i for i, node in enumerate(plan.nodes)}
        by_name = {node.name: node for node in plan.nodes}

        def let_in(client: RpcClient) -> list[str]:
            name = client.host.name
            node, index = by_name[name], indices[name]
            lacking = keys.options_lacking(node.banner)
            args: dict[str, Any] = {
                "run": run.id,
                "index": index,
                "key": pair.public,
                "command": site.agent_command(node, run, index),
                "from": [node.source],
                "seconds": KEY_LIFE,
                "without": list(lacking),
            }
            findings: list[str] = client.ask("authorize", **args).values["findings"]
            if lacking:
                findings.append(
                    f"its sshd ({node.banner}) does not know {', '.join(lacking)} in "
                    "authorized_keys, so the run's key is let in without"
                )
            return findings

        workers = [node.client for node in plan.nodes[1:]]
        for name, findings in side_by_side(workers, let_in).items():
            for finding in findings:
                self._warn(f"{name}: {finding}")

    # ----------------------------------------------------------------------- following

    def _link(self, run: RunDir) -> Link:
        if run.id not in self._links:
            hosts = []
            with contextlib.suppress(KeyError, TypeError):  # the next line says it
                hosts = [Host(**entry) for entry in (read_json(run.site) or {})["hosts"]]
            if not hosts:
                raise NotFoundError(f"{run.site} is damaged, so the run's hosts are not known")
            self._links[run.id] = Link(run, hosts).start()
        return self._links[run.id]

    def poll(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand, as far as their lead hosts can be reached."""
        from shanty.runtime.agent.control import read_status

        found = {handle: read_status(handle.run) for handle in handles}
        links = {
            handle: self._link(handle.run)
            for handle, status in found.items()
            if not status.state.final or handle.run.id in self._links
        }
        until = time.monotonic() + _FIRST_LOOK  # they all look at the same time
        for handle, link in links.items():
            found[handle] = link.status(max(0.0, until - time.monotonic()))
        return found

    def fetch(self, handle: Handle, path: PurePosixPath, offset: int) -> Chunk:
        """The next piece of one of the run's files, of which this machine has a copy."""
        return self._local.fetch(handle, path, offset)

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Put a request to the controller and wait for its answer."""
        if self.poll([handle])[handle].state.final:
            return Reply(isinstance(request, Stop), "the run has ended")
        reply = self._link(handle.run).ask(request.to_json())
        return Reply(reply["ok"], reply.get("error", ""), reply.get("stacks", []))


def _prepared(plan: SitePlan, begin: int) -> str:
    """The run's first event: the bytes that each host was sent; `begin` are the lead's last."""
    sent = {node.name: node.client.bytes_sent for node in plan.nodes}
    sent[plan.nodes[0].name] += begin
    return json.dumps({"time": time.time(), "event": "prepared", "sent": sent}) + "\n"


def _sweep(client: RpcClient) -> None:
    """End what runs that crashed have left on a host."""
    client.ask("sweep-runs")
    client.ask("sweep-keys")
    client.ask("store-sweep", days=_UNUSED)


def _distinct(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """The hosts; UsageError when two have one name, by which all that is known of them is kept."""
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{name} is named more than once, with another user or port",
                "hosts are told from each other by their names",
                "give each a name of its own in ~/.ssh/config (Host, HostName, Port, User)",
            )
    return hosts
