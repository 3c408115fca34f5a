"""Turns a job and the facts of several hosts into what the agents there need to know."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any

from shanty.launch.cluster.host import Host
from shanty.launch.cluster.prepare import Prepared
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.network.route import Route
from shanty.launch.settings import Settings
from shanty.launch.targets import networks
from shanty.launch.targets.base import Facts
from shanty.launch.targets.plan import LAUNCHERS, for_agents, job_key, layout_of
from shanty.runtime.agent.rank_start import rank_command
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Module, Program, Raw, Script

_SYSTEM_BINS = ("/bin", "/usr/bin", "/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Node:
    """A host of a run as the survey found it.

    `cores` are those that it has for itself. `address` is by what its lead reaches it, in
    numbers; `login` and `port` are for the lead's ssh; `source` is the lead's own address on
    that way; `names` are all that it may be called.
    """

    host: Host
    client: RpcClient
    survey: Mapping[str, Any]
    cores: int
    slots: int
    address: str
    login: str
    port: int
    source: str
    names: tuple[str, ...]
    banner: str = ""

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.host.name


@dataclass(frozen=True, slots=True)
class SitePlan:
    """A job on several hosts: what can be decided before anything is put there."""

    job: JobSpec
    nodes: tuple[Node, ...]
    layout: Layout
    installation: Installation
    python: str
    settings: Settings
    run: RunDir
    route: Route = networks.OPEN

    @property
    def raw(self) -> bool:
        """True when the user's own line starts the launcher."""
        return isinstance(self.job.command, Raw)

    @property
    def scratch(self) -> str:
        """The folder for temporary files, at the same path on every host."""
        return f"/tmp/shanty-{self.run.id[-11:]}"

    @property
    def placement(self) -> dict[str, int]:
        """How many ranks are meant for each host; empty where the launcher decides."""
        layout = self.layout
        if self.raw or layout.ranks is None or layout.oversubscribe:
            return {}
        left, found = layout.ranks, {}
        for node, host in zip(self.nodes, layout.hosts, strict=True):
            most = host.slots
            if most and layout.ranks_per_host is not None:
                most = layout.ranks_per_host
            found[node.name] = min(left, most)
            left -= found[node.name]
        return found

    def render(self) -> str:
        """What would be run, for a person to read."""
        title = FLAVOURS[self.installation.flavour].title
        lines = [f"# MPI     {title} {self.installation.version}, put on every host"]
        for index, node in enumerate(self.nodes):
            role = " (lead)" if index == 0 else ""
            lines.append(f"# host    {node.name}{role}: {node.slots} slots, {node.address}")
        if self.route.rails:
            lines.append(f"# network {networks.described(self.route)}")
        lines += [
            f"# ranks   {self.layout.ranks or 'as the command says'}",
            f"# python  {self.python}, or the same made there (--env)",
            f"cat > hostfile <<'END'\n{self.hostfile()}END",
            shlex.join(self._argv(self.installation, "hostfile", {})),
        ]
        return "\n".join(lines)

    def hostfile(self) -> str:
        """The text of the run's host file."""
        return FLAVOURS[self.installation.flavour].hostfile(self.layout.hosts)

    def _argv(
        self, installation: Installation, hostfile: str, variables: Mapping[str, str]
    ) -> list[str]:
        command = self.job.command
        if isinstance(command, Raw):
            if command.shell:
                return ["sh", "-c", command.argv[0]]
            return [Template(word).safe_substitute(variables) for word in command.argv]
        program = [*rank_command(self.scratch, "0"), *self._program()]
        layout = replace(self.layout, hostfile=hostfile)
        return FLAVOURS[installation.flavour].command(installation, layout, program)

    def _program(self) -> list[str]:
        command = self.job.command
        if isinstance(command, Script):
            return ["python", self._relative(command.path), *command.args]
        if isinstance(command, Module):
            return ["python", "-m", command.name, *command.args]
        assert isinstance(command, Program)
        return [self._relative(command.argv[0]), *command.argv[1:]]

    def _relative(self, path: str) -> str:
        """A path in the workspace, as it is to be written on hosts where that is elsewhere."""
        if Path(path).is_relative_to(self.job.workdir):
            return "./" + str(Path(path).relative_to(self.job.workdir))
        return path

    # --------------------------------------------------------------- for the agents

    def resolve(self, prepared: Sequence[Prepared]) -> dict[str, Any]:
        """What the lead reads, once all hosts have what they need."""
        lead = self.nodes[0]
        folder = str(_work(lead, self.run, 0))
        installation = prepared[0].installation
        hostfile = f"{folder}/hostfile"
        first = next((i for i, node in enumerate(self.nodes) if node.slots > 0), 0)
        return {
            **for_agents(
                self.job, replace(self.layout, hostfile=hostfile), installation, self.settings
            ),
            "id": self.run.id,
            "name": lead.name,
            "argv": self._argv(installation, hostfile, {**self.job.env, "HOSTFILE": hostfile}),
            "env": self._launcher_environment(prepared[0], folder, hostfile),
            "python": prepared[0].python,
            "agent_python": lead.client.python,
            "scratch": self.scratch,
            "placement": self.placement,
            "first": first,
            "shared": {"MASTER_ADDR": self._address(first)},
            "network": networks.to_json(self.route),
            "key": f"{folder}/key",
            "known_hosts": f"{folder}/known_hosts",
            "place": self._place(0, prepared[0]),
            "workers": [
                {
                    "index": index,
                    "name": node.name,
                    "names": list(node.names),
                    "alias": alias(index),
                    "address": node.address,
                    "user": node.login,
                    "port": node.port,
                    "prefix": prepared[index].installation.prefix,
                    "place": self._place(index, prepared[index]),
                }
                for index, node in enumerate(self.nodes)
                if index > 0
            ],
        }

    def _address(self, index: int) -> str:
        """Where the others reach a host in this run."""
        node = self.nodes[index]
        if not self.route.rails:
            return node.address
        return self.route.rails[0].interfaces[node.name].address

    def _launcher_environment(
        self, prepared: Prepared, folder: str, hostfile: str
    ) -> dict[str, str]:
        flavour = FLAVOURS[prepared.installation.flavour]
        layout = replace(self.layout, hostfile=hostfile)
        settings = flavour.environment(prepared.installation, layout, self.job.env, self.scratch)
        path = [f"{folder}/bin", *_bins(prepared), self.nodes[0].survey["path"]]
        lead = networks.of_host(self.route, self.nodes[0].name, flavour, layout, self.job.env)
        return {**settings, **lead, "HOSTFILE": hostfile, "PATH": os.pathsep.join(path)}

    def _place(self, index: int, prepared: Prepared) -> dict[str, Any]:
        """What differs from host to host (`runtime/agent/rank_start.py` says how it is used)."""
        node = self.nodes[index]
        client = node.client
        folder = str(_work(node, self.run, index))
        flavour = FLAVOURS[prepared.installation.flavour]
        plain = replace(self.layout, hostfile="")
        settings = dict(
            flavour.environment(prepared.installation, plain, self.job.env, self.scratch)
        )
        if node.survey["system"] == "Linux":
            settings.update(flavour.segments(f"/dev/shm/{PurePosixPath(self.scratch).name}"))
        ranks = self.layout.ranks or self.layout.slots
        each = max(1, -(-ranks // max(1, len(self.nodes))))
        threads = self.job.cpus_per_rank or max(1, node.cores // each)
        own = {
            "SHANTY_RUN_DIR": folder,
            "SHANTY_RUN_ID": self.run.id,
            "SHANTY_REPORTS": f"{folder}/reports",
            "SHANTY_LOG_LIMIT": str(self.settings.log_limit),
            "SHANTY_THREADS": str(threads),
            "SHANTY_PACKAGE": client.root,
            "SHANTY_JOB": job_key(self.job),
            "SHANTY_PYTHON": prepared.python,
            **networks.told(self.route, node.name),
        }
        if prepared.mpi4py:
            own["SHANTY_MPI4PY"] = prepared.mpi4py
        if index == 0:
            own["HOSTFILE"] = f"{folder}/hostfile"
        paths = {
            "PATH": os.pathsep.join(_bins(prepared)),
            "PYTHONPATH": f"{client.root}/shanty/runtime/rank/hook",
        }
        if prepared.installation.origin != "system":
            own.update(flavour.moved(prepared.installation.prefix))
            paths["LD_LIBRARY_PATH"] = str(PurePosixPath(prepared.installation.library).parent)
        first = {name: value for name, value in paths.items() if value}
        default = {key: value for key, value in settings.items() if key not in self.job.env}
        return {
            "workdir": prepared.workdir,
            "default": default,
            "ranks": networks.of_host(self.route, node.name, flavour, plain, self.job.env),
            "set": {**self.job.env, **own},
            "first": first,
        }


def make_site_plan(
    job: JobSpec,
    facts: Facts,
    nodes: Sequence[Node],
    run: RunDir,
    settings: Settings,
    route: Route = networks.OPEN,
) -> SitePlan:
    """Decide where the ranks of `job` go; UsageError when they do not fit."""
    fabrics = any(node.survey["fabrics"] for node in nodes)
    layout = replace(
        layout_of(job, facts, run),
        tcp_only=not fabrics,
        networks=route.rails[0].networks if route.rails else (),
        interface=networks.alike(route),
    )
    return SitePlan(
        job, tuple(nodes), layout, facts.installation, facts.python, settings, run, route
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


def host_slots(nodes: Sequence[Node]) -> tuple[HostSlots, ...]:
    """The hosts as a host file has them: by address, which every launcher can make out."""
    return tuple(HostSlots(node.address, node.slots) for node in nodes)


def shims(plan: Mapping[str, Any], lead: Node, run: RunDir) -> dict[str, list[Any]]:
    """The scripts in the lead's bin/: `ssh`, and the launchers for a user's own line."""
    folder = _work(lead, run, 0)
    boot = f"{lead.client.root}/shanty/runtime/boot.py"
    python = [lead.client.python, "-I", "-S", boot]
    scripts = {"ssh": [*python, "rank.rsh_client"]}
    if plan["raw"]:
        for name in LAUNCHERS:
            scripts[name] = [*python, "rank.shim", name, f"{folder}/plan.json"]
    return {
        f"bin/{name}": [f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', 0o755]
        for name, words in scripts.items()
    }


def agent_command(node: Node, run: RunDir, index: int) -> str:
    """The one command that the run's key may start on a worker."""
    boot = f"{node.client.root}/shanty/runtime/boot.py"
    words = [node.client.python, "-I", "-S", boot, "agent.worker_agent"]
    return shlex.join([*words, str(_work(node, run, index))])


def alias(index: int) -> str:
    """The name under which the lead knows the key of a host."""
    return f"shanty-{index}"


def _work(node: Node, run: RunDir, index: int) -> PurePosixPath:
    return PurePosixPath(node.client.home, "work", f"{run.id}.{index}")


def _bins(prepared: Prepared) -> list[str]:
    folders = []
    for program in (prepared.installation.launcher, prepared.python):
        folder = str(PurePosixPath(program).parent)
        if folder not in _SYSTEM_BINS and folder not in folders:
            folders.append(folder)
    return folders
