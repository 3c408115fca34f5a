"""Resolves a job on hosts that are known: layout, launcher's command line, environments.

Pure, and of what every host has, so that it can be done where the hosts become known: at the
command line for this machine and for hosts that are named, on the lead host for those of a queue.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from shanty.runtime.counted import counted
from shanty.runtime.errors import UsageError
from shanty.runtime.lines.command import NO_MPI
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.plan import Attempt, Environment, Leftovers, Node, Plan, namesakes
from shanty.runtime.rank_start import rank_prefix
from shanty.runtime.rundir import CONTINUES, RUN_ID, SEATS, WARM, RunDir
from shanty.runtime.spec import JobSpec, Module, Program, Raw, Script

LAUNCHERS = (
    "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun", "dmlc-submit",
    "mlx.launch", "srun", *NO_MPI,
)  # fmt: skip
TENSORFLOW_1 = "SHANTY_TF1"  # what `rank/instrumentation.py` asks for
_SYSTEM_BINS = ("/bin", "/usr/bin", "/usr/local/bin")


class AttemptSettings(NamedTuple):
    """What holds for all hosts of an attempt.

    `run` is the run's id, `number` the attempt's. `given` are the variables that the user has
    set, which win over shanty's. `networks` is the best network of the run, empty for one host;
    `scratch`, `scripted` and `log_limit` are as in `Plan` and `Limits`.
    """

    run: str
    scratch: str
    scripted: bool
    log_limit: int
    given: Mapping[str, str]
    networks: Tuple[str, ...] = ()
    number: int = 1


def settled(
    plan: Plan,
    job: JobSpec,
    nodes: Sequence[Node],
    environ: Mapping[str, str],
    *,
    networks: Tuple[str, ...] = (),
    number: int = 1,
) -> Plan:
    """The plan with an attempt on hosts that are known; UsageError if the ranks do not fit there.

    `environ` is the environment of the agents, which ranks without a script of their host inherit.
    `networks` and `number` are as in `AttemptSettings`.
    """
    settings = AttemptSettings(
        run=plan.id,
        scratch=plan.scratch,
        scripted=plan.scripted,
        log_limit=plan.limits.log_limit,
        given=job.env if plan.scripted else {**environ, **job.env},
        networks=networks,
        number=number,
    )
    return plan._replace(attempt=resolve(job, nodes, settings), waits=False)


def resolve(job: JobSpec, nodes: Sequence[Node], settings: AttemptSettings) -> Attempt:
    """Decide where the ranks of `job` go and how they are started; UsageError if they do not fit.

    The first of `nodes` is the lead host. Their environments are filled in.
    """
    if job.elastic is not None and (settings.number > 1 or CONTINUES in job.env):
        job = _with_those_that_fit(job, nodes)
    layout = layout_of(job, nodes, settings.networks)
    if job.elastic is not None:
        check_elastic(job, nodes[0].installation.flavour, (layout.ranks or 0) - job.spares)
    elif job.spares:
        raise UsageError(
            "--spares needs --elastic",
            "without it a run ends when it loses a rank, so no spare would ever take its place",
            f"add --elastic: shanty run --elastic --spares {job.spares} -n 4 train.py",
        )
    if job.warm:
        _check_warm(job, nodes)
    shared_names = namesakes(nodes)
    nodes = tuple(
        node._replace(environment=_environment(job, node, layout, settings)) for node in nodes
    )
    nodes = tuple(_renamed(node) if node.name in shared_names else node for node in nodes)
    lead = nodes[0]
    first = next((node for node in nodes if node.slots > 0), lead)
    launcher: Dict[str, str] = {}
    if settings.scripted:
        launcher = _launcher_environment(job, lead, layout, settings.scratch)
    return Attempt(
        nodes=nodes,
        argv=tuple(_argv(job, lead, layout, settings)),
        layout_values=asdict(layout),
        environment=launcher,
        shared={"MASTER_ADDR": first.rank_address},
        placement=_placement(job, nodes, layout) if settings.scripted else {},
        first=first.number,
        number=settings.number,
    )


def _with_those_that_fit(job: JobSpec, nodes: Sequence[Node]) -> JobSpec:
    """An elastic job with as many of its ranks as the hosts that are left have room for."""
    room = sum(_room(node, job.cpus_per_rank or 1) for node in nodes)
    if job.ranks_per_host is not None:
        room = job.ranks_per_host * sum(node.slots > 0 for node in nodes)
    elif job.oversubscribe:
        return job
    fits = job.processes is None or job.processes <= room
    return job if fits or room <= job.spares else replace(job, ranks=room - job.spares)


def check_elastic(job: JobSpec, mpi: str, ranks: Optional[int]) -> None:
    """UsageError where a run with so many ranks and that MPI cannot go on after a loss."""
    flavour = FLAVOURS[mpi]
    able = ", ".join(each.title for each in FLAVOURS.values() if each.elastic)
    if isinstance(job.command, Raw):
        raise UsageError(
            "--elastic needs a run whose launcher shanty calls",
            "a launcher line of your own decides itself what happens when a rank is lost",
            "leave out mpirun: shanty run --elastic -n 4 train.py",
        )
    if not flavour.elastic:
        name = next(each.name for each in FLAVOURS.values() if each.elastic)
        raise UsageError(
            f"--elastic needs {able}, and this run would use {flavour.title}",
            "other MPIs end all ranks when one is lost",
            f"add --mpi {name}; --retries starts again with any MPI",
        )
    if ranks is not None and ranks < 1:
        raise UsageError(
            f"--spares {job.spares} leaves no place for a rank",
            f"there is room for {ranks + job.spares}, spares among them",
            "take fewer spares, name more hosts, or give the number of ranks with -n",
        )
    if ranks is not None and (job.elastic or 1) > ranks:
        raise UsageError(
            f"--elastic={job.elastic} needs more ranks than the {ranks} of this run",
            fix=f"take at most --elastic={max(1, ranks - 1)}, or more ranks with -n",
        )


def _check_warm(job: JobSpec, nodes: Sequence[Node]) -> None:
    """UsageError where ranks cannot be forked from a Python that waits on their host."""
    if isinstance(job.command, (Program, Raw)):
        raise UsageError(
            "--warm needs a Python script or a module (-m)",
            "ranks are forked from a Python that has its frameworks imported",
            "leave it out, or: shanty run --warm -n 4 train.py",
        )
    if any(node.container or node.connection.get("kind") == "pod" for node in nodes):
        raise UsageError(
            "--warm does not work in containers and pods", fix="leave it out of this run"
        )


def leftovers(installation: Installation) -> Leftovers:
    """What may be left behind by the programs of a run with this MPI."""
    # Of all: a program may load another MPI's library than the launcher's.
    shared = {name for each in FLAVOURS.values() for name in each.shared_memory_files}
    temporary = FLAVOURS[installation.flavour].temporary_files
    return Leftovers(tuple(sorted(shared)), tuple(temporary))


# ------------------------------------------------------------------------------- the layout


def layout_of(job: JobSpec, nodes: Sequence[Node], networks: Tuple[str, ...] = ()) -> Layout:
    """How many ranks and spares there are and where they may go; UsageError if they do not fit."""
    hosts = tuple(HostSlots(node.address, node.slots) for node in nodes)
    slots = sum(host.slots for host in hosts)
    cpus = job.cpus_per_rank
    room = sum(_room(node, cpus or 1) for node in nodes)
    if not room and max((node.cores for node in nodes if node.slots), default=0) >= (cpus or 1):
        room = 1  # slots may be fewer than cores, as where they are GPUs
    ranks = job.processes
    if job.ranks_per_host is not None:
        used = [host for host in hosts if host.slots > 0]
        wanted = job.ranks_per_host * len(used)
        if ranks is not None and ranks > wanted:
            raise UsageError(
                f"{_ranks_with(ranks, None, job.spares)} not fit with {job.ranks_per_host} a host "
                f"on {len(used)} hosts",
                fix="name more hosts, or leave -n or --ranks-per-host out",
            )
        ranks = ranks or wanted
    if ranks is None and not isinstance(job.command, Raw):
        ranks = max(1, room)
    if ranks is not None and ranks > room and not job.oversubscribe:
        size = counted(slots, "core" if [slots] == [node.cores for node in nodes] else "slot")
        if len(hosts) > 1:
            size += f" of {len(hosts)} hosts"
        less = f"-n {room - job.spares}"
        if room <= job.spares:
            less = "fewer spares" if room else f"-c {max(node.cores for node in nodes)}"
        raise UsageError(
            f"{_ranks_with(ranks, cpus, job.spares)} not fit on {size}",
            _shortage(nodes, ranks),
            f"take {less}, or --oversubscribe to run {'it' if ranks == 1 else 'them'} all the same",
        )
    left = ranks or 0
    for node, host in zip(nodes, hosts):
        each_host = min(left, job.ranks_per_host or 0) if host.slots else 0
        if each_host > _room(node, cpus or 1) and not job.oversubscribe:
            raise UsageError(
                f"{_ranks_with(each_host, cpus)} not fit on {host.name}, which has "
                f"{counted(host.slots, 'slot')}",
                _shortage([node], each_host),
                "take a smaller --ranks-per-host, or --oversubscribe to run them all the same",
            )
        left -= each_host
    by_gpu = any(node.gpus for node in nodes)  # then slots are not what a launcher can bind to
    binds = cpus if cpus and not by_gpu and (ranks or 1) * cpus <= slots else None
    if cpus and by_gpu and not job.oversubscribe:
        hosts = tuple(HostSlots(node.address, _room(node, cpus)) for node in nodes)
    if binds and len(hosts) > 1:  # a launcher fills a host's slots, whatever each rank is bound to
        hosts = tuple(HostSlots(host.name, host.slots // binds) for host in hosts)
    names = {node.interfaces[0][0] for node in nodes if node.interfaces}
    return Layout(
        hosts,
        ranks,
        job.ranks_per_host,
        binds,
        job.oversubscribe,
        min(node.cores for node in nodes),
        f"{nodes[0].run_dir}/hostfile",
        tcp_only=not any(node.fabric for node in nodes),
        networks=networks,
        elastic=job.elastic is not None,
        interface=names.pop() if len(names) == 1 else "",
    )


def _room(node: Node, cpus: int) -> int:
    """How many ranks with so many cores a host takes: slots are cores, unless they are GPUs."""
    return min(node.slots, node.cores // cpus) if node.gpus else node.slots // cpus


def _ranks_with(ranks: int, cpus: Optional[int], spares: int = 0) -> str:
    """The beginning of "… not fit on HOST"; spares: how many of the ranks are some."""
    if spares:
        each = f", with {counted(cpus, 'cpu')} each," if cpus else ""
        return f"{counted(ranks - spares, 'rank')} and {counted(spares, 'spare')}{each} do"
    if ranks == 1:
        return f"a rank with {counted(cpus or 1, 'cpu')} does"
    each = f" with {counted(cpus, 'cpu')} each" if cpus else ""
    return f"{ranks} ranks{each} do"


def _shortage(nodes: Sequence[Node], ranks: int) -> str:
    """Why hosts have no room for that many; limits count where slots are cores."""
    what = "threads" if ranks == 1 else "ranks"
    limited = [node for node in nodes if node.limit and node.slots == node.cores]
    texts = [f"{node.name}: {node.limit}" if len(nodes) > 1 else node.limit for node in limited]
    return "; ".join([*texts, f"{what} that share a core slow each other down"])


def _placement(job: JobSpec, nodes: Sequence[Node], layout: Layout) -> Dict[str, int]:
    """The number of ranks on each host; empty where the launcher decides."""
    if isinstance(job.command, Raw) or layout.ranks is None or layout.oversubscribe:
        return {}
    left, found = layout.ranks, {}
    for node, host in zip(nodes, layout.hosts):
        most = host.slots
        if most and layout.ranks_per_host is not None:
            most = layout.ranks_per_host
        found[node.name] = min(left, most)
        left -= found[node.name]
    return found


# ------------------------------------------------------------------------- the command line


def _argv(job: JobSpec, lead: Node, layout: Layout, settings: AttemptSettings) -> List[str]:
    command, scripted = job.command, settings.scripted
    if isinstance(command, Raw):
        return ["sh", "-c", command.argv[0]] if command.shell else list(command.argv)
    prefix = rank_prefix(lead.boot, settings.scratch if scripted else "")
    program = _program(job, "" if scripted else lead.python)
    return FLAVOURS[lead.installation.flavour].command(
        lead.installation, layout, [*prefix, *program]
    )


def _program(job: JobSpec, python: str) -> List[str]:
    """What each rank runs; `python` is "" where interpreter and paths differ from host to host."""
    command = job.command
    if isinstance(command, Module):
        return [python or "python", "-m", command.name, *command.args]
    assert isinstance(command, (Program, Script))
    words = command.argv if isinstance(command, Program) else (command.path, *command.args)
    first = words[0]
    if not python and Path(first).is_relative_to(job.workdir):
        first = "./" + str(Path(first).relative_to(job.workdir))
    runs = [python or "python"] if isinstance(command, Script) else []
    return [*runs, first, *words[1:]]


def shim_scripts(lead: Node, *, raw: bool, workers: bool) -> Dict[str, str]:
    """The programs in the run's bin/ by their names: `ssh`, and the launchers for a raw line.

    Open MPI 4.1 wants an ssh in any case, and an image may have none.
    """
    programs = {"ssh": ["rank.rsh_client"]} if workers or lead.container else {}
    if raw:
        programs.update((n, ["rank.shim", n, f"{lead.run_dir}/plan.json"]) for n in LAUNCHERS)
    return {
        name: f'#!/bin/sh\nexec {shlex.join([*lead.boot, *words])} "$@"\n'
        for name, words in programs.items()
    }


def agent_files(plan: Plan) -> Dict[str, Tuple[str, int]]:
    """The files that agents need beside `plan.json` and `job.json`: text and mode, by their paths.

    The host file is empty while the plan waits for its hosts.
    """
    shims = shim_scripts(plan.lead, raw=plan.raw, workers=bool(plan.workers))
    files = {f"bin/{name}": (text, 0o755) for name, text in shims.items()}
    flavour = FLAVOURS[plan.lead.installation.flavour]
    hostfile = "" if plan.waits else flavour.hostfile(plan.attempt.layout.hosts)
    return {**files, "hostfile": (hostfile, 0o644)}


# ---------------------------------------------------------------------------- environments


def _environment(
    job: JobSpec, node: Node, layout: Layout, settings: AttemptSettings
) -> Environment:
    """What is set for all that starts on a host."""
    given, scripted = settings.given, settings.scripted
    installation = node.installation
    flavour = FLAVOURS[installation.flavour]
    plain = replace(layout, hostfile="") if scripted else layout
    default = dict(flavour.environment(installation, plain, given, settings.scratch))
    if node.segments:
        segments = flavour.segments(node.segments)
        default.update((name, value) for name, value in segments.items() if name not in given)
    own = {"HOSTFILE": layout.hostfile} if node.number == 0 else {}
    if node.container:  # the caller's home is not in it
        own["HOME"] = settings.scratch
    own.update(job.env)
    own.update(_ours(job, node, layout, settings))
    first = {
        "PATH": os.pathsep.join(_bins(node, scripted=scripted)),
        "PYTHONPATH": f"{node.package}/shanty/runtime/rank/hook",
    }
    if installation.origin != "system":
        if scripted:
            own.update(flavour.moved(installation.prefix))
        first["LD_LIBRARY_PATH"] = str(Path(installation.library).parent)
    return Environment(
        default={key: value for key, value in default.items() if key not in job.env},
        ranks=network_settings(node.interfaces, flavour, plain, job.env),
        own=own,
        first={name: value for name, value in first.items() if value},
    )


def _renamed(node: Node) -> Node:
    """The host with another name for its ranks than its own, which other hosts have, too."""
    variable = FLAVOURS[node.installation.flavour].name_variable
    own = {variable: node.address, **node.environment.own} if variable else node.environment.own
    return node._replace(environment=node.environment._replace(own=own))


def _ours(job: JobSpec, node: Node, layout: Layout, settings: AttemptSettings) -> Dict[str, str]:
    """The variables that shanty's own parts read."""
    files = RunDir(Path(node.run_dir), settings.number)
    values = {
        "SHANTY_RUN_DIR": node.run_dir,
        RUN_ID: settings.run,
        "SHANTY_REPORTS": str(files.reports),
        "SHANTY_WORLD": "0",
        "SHANTY_LOG_LIMIT": str(settings.log_limit),
        "SHANTY_CORES": str(node.cores),
        "SHANTY_PACKAGE": node.package,
        "SHANTY_JOB": job_key(job),
    }
    values.update(_group(node, layout))
    if job.no_tty:
        values["SHANTY_NO_TTY"] = "1"
    if job.elastic is not None:
        values["SHANTY_ELASTIC"] = str(job.elastic)
        if job.spares:
            values["SHANTY_SPARES"] = str(job.spares)
        start = rank_prefix(node.boot, settings.scratch if settings.scripted else "")
        program = _program(job, "" if settings.scripted else node.python)
        values["SHANTY_RANK_START"] = shlex.join([*start, SEATS, *program])
    if job.warm:
        values[WARM] = ",".join(job.warm)
        values["SHANTY_WARM_WAIT"] = f"{job.start_timeout / 2:g}"  # after it a rank can still start
    if job.cpus_per_rank:
        values["SHANTY_THREADS"] = str(job.cpus_per_rank)
    if job.retries:
        values["TORCHELASTIC_MAX_RESTARTS"] = str(job.retries)
        values["TORCHELASTIC_RESTART_COUNT"] = str(settings.number - 1)
    if settings.number > 1:
        values["SHANTY_ATTEMPT_DIR"] = str(files.of_attempt)
    if settings.scripted:
        del values["SHANTY_WORLD"]  # the script gets it from each launcher
        values["SHANTY_PYTHON"] = node.python
    if node.interfaces:
        values["SHANTY_INTERFACE"], values["SHANTY_ADDRESS"] = node.interfaces[0]
    if node.mpi4py:
        values["SHANTY_MPI4PY"] = node.mpi4py
    if job.tf1:
        values[TENSORFLOW_1] = "1"
    if job.log_to:
        values["SHANTY_LOG_TO"], values["SHANTY_LOG_NAME"] = ",".join(job.log_to), job.name or ""
    if job.profile:
        values["SHANTY_PROFILE"] = node.name
    if job.debug_rank is not None:
        values["SHANTY_DEBUG_RANK"] = str(job.debug_rank)
    return values


def _group(node: Node, layout: Layout) -> Dict[str, str]:
    """The place of a host among those with ranks, as torchrun calls it; nothing for one alone."""
    used = [host.name for host in layout.hosts if host.slots > 0]
    if len(used) < 2 or node.address not in used:
        return {}
    return {"GROUP_RANK": str(used.index(node.address)), "GROUP_WORLD_SIZE": str(len(used))}


def _launcher_environment(job: JobSpec, lead: Node, layout: Layout, scratch: str) -> Dict[str, str]:
    """What is set for the launcher alone, where its ranks have an environment of their hosts."""
    flavour = FLAVOURS[lead.installation.flavour]
    path = [f"{lead.run_dir}/bin", *_bins(lead, scripted=True), lead.search_path]
    return {
        **flavour.environment(lead.installation, layout, job.env, scratch),
        **network_settings(lead.interfaces, flavour, layout, job.env),
        "HOSTFILE": layout.hostfile,
        "PATH": os.pathsep.join(path),
    }


def network_settings(
    interfaces: Sequence[Tuple[str, str]],
    flavour: Flavour,
    layout: Layout,
    given: Mapping[str, str],
) -> Dict[str, str]:
    """The settings that lead to a host's interfaces: for the MPI, and for libraries beside it.

    Nothing that contradicts `given`, the user's own. Interfaces are names and addresses.
    """
    names = list(dict.fromkeys(name for name, _ in interfaces))
    if not names:
        return {}
    beside = {
        "NCCL_SOCKET_IFNAME": "=" + ",".join(names),  # "=": not all that begin like this
        "GLOO_SOCKET_IFNAME": names[0],
    }
    if layout.tcp_only:  # else UCX would pass by InfiniBand
        beside["UCX_NET_DEVICES"] = names[0]
    own = {name: value for name, value in beside.items() if name not in given}
    return {**own, **flavour.interfaces(layout, names, given)}


def _bins(node: Node, *, scripted: bool) -> List[str]:
    """The folders that come first on PATH.

    On this machine the shims come before all, and an MPI that lies in the environment of another
    Python comes after the chosen one.
    """
    folders = [] if scripted else [f"{node.run_dir}/bin"]
    programs = [node.installation.launcher, node.python]
    if not scripted and Path(programs[0]).with_name("python").exists():
        programs.reverse()
    for program in programs:
        folder = str(Path(program).parent)
        if folder not in _SYSTEM_BINS and folder not in folders:
            folders.append(folder)
    return folders


def job_key(job: JobSpec) -> str:
    """A hash of the run's name and of the source of its code, which the command does not show."""
    said = f"{job.name or ''}\0{job.source or job.workdir}"
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()[:16]
