"""Turns a job and the facts of its hosts into all that the agents need to know."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

import shanty.runtime
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Facts
from shanty.runtime import platform
from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Module, Program, Raw, Script

LAUNCHERS = (
    "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun", "dmlc-submit",
    "mlx.launch",
)  # fmt: skip
_CARRY = Path(shanty.runtime.__file__).parent
_PACKAGES = _CARRY.parent.parent
_SYSTEM_BINS = ("/bin", "/usr/bin", "/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Plan:
    """A job as it will be run: what is started, where, and in which environment.

    `argv` is started once on the lead host; `environment` is added to that of the user;
    `variables` are those of them that shanty sets for itself and a dry run leaves out.
    """

    argv: list[str]
    environment: dict[str, str]
    variables: dict[str, str]
    layout: Layout
    installation: Installation
    hostfile: str
    raw: bool
    python: str
    scratch: str
    job: JobSpec
    settings: Settings

    def render(self) -> str:
        """What would be run, for a person to read and to paste."""
        title = FLAVOURS[self.installation.flavour].title
        hosts = ", ".join(f"{host.name} ({host.slots} slots)" for host in self.layout.hosts)
        lines = [
            f"# MPI     {title} {self.installation.version} ({self.installation.prefix})",
            f"# hosts   {hosts}",
            f"# ranks   {self.layout.ranks or 'as the command says'}",
            f"# python  {self.python}",
            f"cd {shlex.quote(self.job.workdir)}",
            *(f"export {key}={shlex.quote(value)}" for key, value in self.environment.items()),
            f"cat > {shlex.quote(self.layout.hostfile)} <<'END'\n{self.hostfile}END",
            shlex.join(self.argv),
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """What the agents read."""
        return {
            **for_agents(self.job, self.layout, self.installation, self.settings),
            "argv": self.argv,
            "env": {**self.environment, **self.variables},
            "python": self.python,
            "agent_python": sys.executable,
            "scratch": self.scratch,
        }


def for_agents(
    job: JobSpec, layout: Layout, installation: Installation, settings: Settings
) -> dict[str, Any]:
    """What the agents are told of any run; `layout` and `installation` as on the lead host."""
    raw = isinstance(job.command, Raw)
    return {
        "raw": raw,
        "ranks": None if raw else layout.ranks,
        "hosts": [[host.name, host.slots] for host in layout.hosts],
        "layout": {
            "ranks": layout.ranks,
            "ranks_per_host": layout.ranks_per_host,
            "cpus_per_rank": layout.cpus_per_rank,
            "oversubscribe": layout.oversubscribe,
            "cores": layout.cores,
            "hostfile": layout.hostfile,
            "tcp_only": layout.tcp_only,
            "networks": list(layout.networks),
            "interface": layout.interface,
        },
        "installation": asdict(installation),
        # Of all: a program may load another MPI's library than the launcher's.
        "residue": sorted(
            {name for each in FLAVOURS.values() for name in each.leftover_files.shared_memory}
        ),
        "temporary": list(FLAVOURS[installation.flavour].leftover_files.temporary),
        "log_limit": settings.log_limit,
        "grace": settings.stop_grace,
        "start_timeout": job.start_timeout,
        "time_limit": job.time_limit,
        "on_stall": job.on_stall or settings.on_stall,
        "stall_after": settings.stall_after if job.stall_after is None else job.stall_after,
        "created": time.time(),
    }


def make_plan(
    job: JobSpec, facts: Facts, run: RunDir, environ: Mapping[str, str], settings: Settings
) -> Plan:
    """Plan `job` on the hosts of `facts`; UsageError when it cannot fit there.

    `environ` is the user's environment: what is set there wins over shanty's defaults.
    """
    layout = layout_of(job, facts, run)
    flavour = FLAVOURS[facts.installation.flavour]
    scratch = f"{platform.scratch_root()}/{run.id[-11:]}"
    user = {**environ, **job.env}
    segments = flavour.segments(f"{platform.SHARED_MEMORY}/{Path(scratch).name}")
    environment = {
        **flavour.environment(facts.installation, layout, user, scratch),
        **({k: v for k, v in segments.items() if k not in user} if platform.SHARED_MEMORY else {}),
        "HOSTFILE": str(run.hostfile),
        **dict(job.env),
    }
    variables = _variables(job, facts, run, layout, user, settings)
    program = _program(job, facts.python)
    raw = isinstance(job.command, Raw)
    if isinstance(job.command, Raw):
        argv = _raw(job.command, {**environment, **variables})
    else:
        argv = flavour.command(facts.installation, layout, [*exec_prefix(), *program])
    return Plan(
        argv,
        environment,
        variables,
        layout,
        facts.installation,
        flavour.hostfile(layout.hosts),
        raw,
        facts.python,
        scratch,
        job,
        settings,
    )


def exec_prefix() -> list[str]:
    """The start of every rank's command line."""
    return [sys.executable, "-I", "-S", str(_CARRY / "boot.py"), "rank.exec"]


def layout_of(job: JobSpec, facts: Facts, run: RunDir) -> Layout:
    """How many ranks there are and where they may go; UsageError when they do not fit."""
    slots = sum(host.slots for host in facts.hosts)
    cpus = job.cpus_per_rank
    room = max(1, sum(host.slots // (cpus or 1) for host in facts.hosts))
    ranks = job.ranks
    if job.ranks_per_host is not None:
        used = [host for host in facts.hosts if host.slots > 0]
        wanted = job.ranks_per_host * len(used)
        if ranks is not None and ranks > wanted:
            raise UsageError(
                f"{ranks} ranks do not fit with {job.ranks_per_host} a host on {len(used)} hosts",
                fix="leave -n or --ranks-per-host out",
            )
        ranks = ranks or wanted
    if ranks is None and not isinstance(job.command, Raw):
        ranks = room
    if ranks is not None and ranks > room and not job.oversubscribe:
        each = f" with {cpus} cpus each" if cpus else ""
        kind = "cores" if len(facts.hosts) == 1 else f"slots of {len(facts.hosts)} hosts"
        raise UsageError(
            f"{ranks} ranks{each} do not fit on {slots} {kind}",
            "ranks that share a core slow each other down",
            f"take -n {room}, or --oversubscribe to run them all the same",
        )
    left = ranks or 0
    for host in facts.hosts:
        each_host = min(left, job.ranks_per_host or 0) if host.slots else 0
        if each_host > host.slots // (cpus or 1) and not job.oversubscribe:
            raise UsageError(
                f"{each_host} ranks do not fit on {host.name}, which has {host.slots} slots",
                "ranks that share a core slow each other down",
                "take a smaller --ranks-per-host, or --oversubscribe to run them all the same",
            )
        left -= each_host
    binds = cpus if cpus and (ranks or 1) * cpus <= slots else None
    hosts = facts.hosts
    if binds and len(hosts) > 1:  # a launcher fills a host's slots, whatever each rank is bound to
        hosts = tuple(HostSlots(host.name, host.slots // binds) for host in hosts)
    return Layout(
        hosts,
        ranks,
        job.ranks_per_host,
        binds,
        job.oversubscribe,
        facts.cores,
        str(run.hostfile),
    )


def _program(job: JobSpec, python: str) -> list[str]:
    command = job.command
    if isinstance(command, Script):
        return [python, command.path, *command.args]
    if isinstance(command, Module):
        return [python, "-m", command.name, *command.args]
    if isinstance(command, Program):
        return list(command.argv)
    return []


def _raw(command: Raw, variables: Mapping[str, str]) -> list[str]:
    """The user's own line; the run's variables in it are filled in, others left to it."""
    if command.shell:
        return ["sh", "-c", command.argv[0]]
    return [Template(word).safe_substitute(variables) for word in command.argv]


def _variables(
    job: JobSpec,
    facts: Facts,
    run: RunDir,
    layout: Layout,
    user: Mapping[str, str],
    settings: Settings,
) -> dict[str, str]:
    """What shanty tells its own parts, and the paths that make a run's tools come first."""
    ranks = layout.ranks or layout.slots
    threads = job.cpus_per_rank or max(1, layout.cores // max(1, ranks))
    variables = {
        "SHANTY_RUN_DIR": str(run.path),
        "SHANTY_RUN_ID": run.id,
        "SHANTY_REPORTS": str(run.reports),
        "SHANTY_WORLD": "0",
        "SHANTY_LOG_LIMIT": str(settings.log_limit),
        "SHANTY_THREADS": str(threads),
        "SHANTY_STACKS_SIGNAL": str(platform.STACKS_SIGNAL),
        "SHANTY_PACKAGE": str(_PACKAGES),
        "SHANTY_JOB": job_key(job),
        "PATH": _search_path(run, facts, user),
        "PYTHONPATH": _joined(str(_CARRY / "rank" / "hook"), user.get("PYTHONPATH")),
    }
    mpi4py = importlib.util.find_spec("mpi4py")
    if mpi4py and mpi4py.origin:
        folder = str(Path(mpi4py.origin).parent.parent)
        variables["SHANTY_MPI4PY"] = f"{folder}|{sys.implementation.cache_tag}"
    if facts.installation.origin != "system":
        library = str(Path(facts.installation.library).parent)
        variables["LD_LIBRARY_PATH"] = _joined(library, user.get("LD_LIBRARY_PATH"))
    if job.debug_rank is not None:
        variables["SHANTY_DEBUG_RANK"] = str(job.debug_rank)
    return variables


def _search_path(run: RunDir, facts: Facts, user: Mapping[str, str]) -> str:
    """PATH: the shims, the MPI, the chosen Python, then the user's own.

    An MPI that lies in the environment of another Python comes after the chosen one.
    """
    folders = [str(run.bin)]
    programs = [facts.installation.launcher, facts.python]
    if Path(facts.installation.launcher).with_name("python").exists():
        programs.reverse()
    for program in programs:
        folder = str(Path(program).parent)
        if folder not in _SYSTEM_BINS and folder not in folders:
            folders.append(folder)
    return os.pathsep.join([*folders, user.get("PATH") or os.defpath])


def job_key(job: JobSpec) -> str:
    """A hash of what a script's words do not tell: the run's name, and where its code is from."""
    said = f"{job.name or ''}\0{job.source or job.workdir}"
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()[:16]


def _joined(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first


def shim_script(name: str, plan_file: Path) -> str:
    """The text of the program that stands for the launcher `name` inside a run."""
    words = [sys.executable, "-I", "-S", str(_CARRY / "boot.py"), "rank.shim", name]
    return f'#!/bin/sh\nexec {shlex.join([*words, str(plan_file)])} "$@"\n'
