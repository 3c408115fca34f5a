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

from shanty.carry.agent.remote import KEY_LIFE
from shanty.carry.errors import NotFoundError, ShantyError, UsageError
from shanty.carry.rundir import RunDir, read_json, storage_errors, write_json
from shanty.carry.spec import JobSpec, Status
from shanty.launch import interpreter, mpis
from shanty.launch.doctor import quick
from shanty.launch.net.route import Route
from shanty.launch.settings import Settings
from shanty.launch.site import contact, feed, inventory, keys
from shanty.launch.site.host import Host
from shanty.launch.site.hostfiles import read_hostfile
from shanty.launch.site.link import Link
from shanty.launch.site.placement import side_by_side
from shanty.launch.site.porter import Porter
from shanty.launch.targets import networks, site, ways
from shanty.launch.targets.base import Chunk, Facts, Handle, Reply, Stacks, Stop
from shanty.launch.targets.local import LocalTarget
from shanty.launch.targets.site import Member, SitePlan

_FIRST_LOOK = 5.0  # seconds that `ps` waits for a lead host
_UNUSED = 30  # days after which a host gives up what no run has asked for


@dataclass(frozen=True, slots=True)
class SiteFacts(Facts):
    """What a survey found, the hosts with their porters, and the networks between them."""

    members: tuple[Member, ...] = ()
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
        porters = contact.connect(
            hosts,
            terminal=self._terminal,
            progress=lambda host, text: self._say(f"{host.name}: {text}"),
            groups=inventory.names(self.home),
        )
        seen = side_by_side(porters, quick.ask)
        surveys = {name: one.survey for name, one in seen.items()}
        members = self._members(hosts, porters, surveys)
        quick.look(job, list(seen.values()), installation, self._warn)
        route = networks.chosen(job, installation, members, self.home, self._say, self._warn)
        return SiteFacts(
            hosts=site.host_slots(members),
            cores=min(member.cores for member in members),
            installation=installation,
            python=python,
            members=tuple(members),
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

    def _members(
        self,
        hosts: Sequence[Host],
        porters: Sequence[Porter],
        surveys: Mapping[str, Mapping[str, Any]],
    ) -> list[Member]:
        ways.distinct(hosts, surveys)
        cores = site.shared_out(surveys)
        gpus = any(surveys[host.name]["gpus"] for host in hosts)
        found = ways.to_hosts(hosts, porters[0], surveys)
        source = next((way["source"] for way in found[1:]), "")
        members = []
        for host, porter, way in zip(hosts, porters, found, strict=True):
            survey = surveys[host.name]
            slots = host.slots
            if slots is None:
                slots = len(survey["gpus"]) if gpus else int(survey["cores"])
            address = way["peer"] or source or ways.own_address(survey)
            names = {host.name, survey["hostname"], survey["hostname"].partition(".")[0]}
            names |= {address, way["address"], *ways.addresses(survey)}
            members.append(
                Member(
                    host,
                    porter,
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
        return members

    def plan(self, job: JobSpec, facts: SiteFacts, run: RunDir) -> SitePlan:
        """Decide where the ranks go; UsageError when they do not fit."""
        return site.make_site_plan(job, facts, facts.members, run, self.settings, facts.route)

    # ---------------------------------------------------------------------- submitting

    def submit(self, job: JobSpec, plan: SitePlan, run: RunDir, stdin: int) -> Handle:
        """Put on the hosts what is missing there, let the lead in, and start it."""
        if not Path(job.workdir).is_dir():
            raise NotFoundError(f"there is no folder {job.workdir}", "the job is to run in it")
        members = plan.members
        porters = [member.porter for member in members]
        feeds = feed.has_input(stdin)
        run.create()
        try:
            with storage_errors(run.path):
                self._write_down(job, plan, run)
            side_by_side(porters, _sweep)
            values = self._prepare(job, plan, run, porters)
            with storage_errors(run.path):
                write_json(run.plan, values)
            self._begin(job, plan, run, values, feeds=feeds)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
            raise
        if feeds:
            feed.start(members[0].host, run.id, stdin)
        hosts = [member.host for member in members]
        self._links[run.id] = Link(run, hosts, porters[0], porters[1:]).start()
        return Handle(run)

    def _write_down(self, job: JobSpec, plan: SitePlan, run: RunDir) -> None:
        write_json(run.job, job.to_json())
        run.hostfile.write_text(plan.hostfile())
        write_json(run.site, {"hosts": [asdict(member.host) for member in plan.members]})
        status = Status(created=time.time(), ranks=None if plan.raw else plan.layout.ranks)
        write_json(run.status, status.to_json())

    def _prepare(
        self, job: JobSpec, plan: SitePlan, run: RunDir, porters: Sequence[Porter]
    ) -> dict[str, Any]:
        from shanty.launch.site.prepare import prepare

        prepared = prepare(
            porters,
            plan.installation,
            plan.python,
            Path(job.workdir),
            job.environment,
            {porter.host.name: f"{run.id}.{index}" for index, porter in enumerate(porters)},
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
        lead, *workers = plan.members
        files = site.shims(values, lead, run)
        files["hostfile"] = [plan.hostfile(), 0o644]
        self._say("")
        try:
            if workers:
                pair = keys.make_pair(run.path)
                self._let_in(plan, run, pair)
                known = [
                    line
                    for index, member in enumerate(plan.members)
                    if index > 0
                    for line in ways.known_lines(member.host, member.porter, site.alias(index))
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
            lead.porter.ask("begin-run", **begin)
        except BaseException:  # Ctrl-C too, and the lead may have been started before it
            with contextlib.suppress(ShantyError):
                stop = Stop(0.0).to_json()
                lead.porter.ask("ask-run", run=run.id, request=stop, patience=5.0)
            for index, member in enumerate(plan.members):
                if index > 0:
                    with contextlib.suppress(ShantyError):
                        member.porter.ask("revoke", run=run.id, index=index, patience=5.0)
            raise

    def _let_in(self, plan: SitePlan, run: RunDir, pair: keys.KeyPair) -> None:
        indices = {member.name: i for i, member in enumerate(plan.members)}
        by_name = {member.name: member for member in plan.members}

        def let_in(porter: Porter) -> list[str]:
            name = porter.host.name
            member, index = by_name[name], indices[name]
            lacking = keys.options_lacking(member.banner)
            args: dict[str, Any] = {
                "run": run.id,
                "index": index,
                "key": pair.public,
                "command": site.warden_command(member, run, index),
                "from": [member.source],
                "seconds": KEY_LIFE,
                "without": list(lacking),
            }
            findings: list[str] = porter.ask("authorize", **args).values["findings"]
            if lacking:
                findings.append(
                    f"its sshd ({member.banner}) does not know {', '.join(lacking)} in "
                    "authorized_keys, so the run's key is let in without"
                )
            return findings

        workers = [member.porter for member in plan.members[1:]]
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
        from shanty.carry.agent.outside import read_status

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
        """Put a request to the lead agent and wait for its answer."""
        if self.poll([handle])[handle].state.final:
            return Reply(isinstance(request, Stop), "the run has ended")
        reply = self._link(handle.run).ask(request.to_json())
        return Reply(reply["ok"], reply.get("error", ""), reply.get("stacks", []))


def _prepared(plan: SitePlan, begin: int) -> str:
    """The run's first event: the bytes that each host was sent; `begin` are the lead's last."""
    sent = {member.name: member.porter.bytes_sent for member in plan.members}
    sent[plan.members[0].name] += begin
    return json.dumps({"time": time.time(), "event": "prepared", "sent": sent}) + "\n"


def _sweep(porter: Porter) -> None:
    """End what runs that crashed have left on a host."""
    porter.ask("sweep-runs")
    porter.ask("sweep-keys")
    porter.ask("store-sweep", days=_UNUSED)


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
