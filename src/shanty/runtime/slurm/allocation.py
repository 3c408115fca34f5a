"""The nodes of a job of Slurm's: which, with how many slots, and how commands start on them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, TypeVar

from shanty.runtime.counted import counted
from shanty.runtime.slurm import parse
from shanty.runtime.spec import JobSpec

_T = TypeVar("_T")
_MOST_COMPONENTS = 1000
_OVERLAP = (20, 11)  # before, steps of a job may share its nodes by themselves
_SPECIAL = 0xFFFFFFF0  # numbers of steps from there on: the batch script, the shell of salloc


def nodes_of(
    environ: Mapping[str, str], job: JobSpec, steps: Sequence[str]
) -> List[Dict[str, Any]]:
    """The nodes of the job that this is in, as `hosts.json` has them, this node first.

    `steps` are the options for steps (`step_options`); ValueError for what cannot be read.
    Slots are the tasks of the job where it asked for tasks, else its CPUs. The nodes of a
    heterogeneous job are those of all its components.
    """
    suffixes = _suffixes(environ)
    by_tasks = _asked_for_tasks(environ, job, suffixes)
    found: List[Dict[str, Any]] = []
    for suffix in suffixes:
        its_steps = [*steps, *([f"--het-group={suffix.rpartition('_')[2]}"] if suffix else [])]
        for name, slots, cpus in _component(environ, suffix, by_tasks and (job.cpus_per_rank or 1)):
            if any(name == host["name"] for host in found):
                raise ValueError(f"{name} is in two components of a heterogeneous job")
            link = connection(name, cpus, environ.get("SLURM_JOB_ID", ""), its_steps)
            found.append({"name": name, "slots": slots, "cores": cpus, "connection": link})
    here = environ.get("SLURMD_NODENAME", "")
    return sorted(found, key=lambda host: host["name"] != here)


def _suffixes(environ: Mapping[str, str]) -> List[str]:
    """What the variables of each component of a heterogeneous job end with; "" for other jobs."""
    size = environ.get("SLURM_HET_SIZE", "")
    if not size and "SLURM_JOB_NODELIST_HET_GROUP_1" not in environ:
        return [""]
    if not (size.isdecimal() and 0 < int(size) <= _MOST_COMPONENTS):
        raise ValueError(f"SLURM_HET_SIZE is {size!r} in a heterogeneous job")
    return [f"_HET_GROUP_{number}" for number in range(int(size))]


def _component(environ: Mapping[str, str], suffix: str, each: int) -> List[Tuple[str, int, int]]:
    """Name, slots and CPUs of each node of a component, whose variables end with `suffix`.

    each: slots for each task; 0: the CPUs are the slots.
    """
    names = _read(environ, f"SLURM_JOB_NODELIST{suffix}", parse.hosts)
    cpus = _read(environ, f"SLURM_JOB_CPUS_PER_NODE{suffix}", parse.counts)
    slots = cpus
    if each:
        slots = [n * each for n in _read(environ, f"SLURM_TASKS_PER_NODE{suffix}", parse.counts)]
    if not len(cpus) == len(slots) == len(names):
        raise ValueError(
            f"{counted(len(names), 'node')}, but {counted(len(cpus), 'count')} of CPUs, "
            f"{len(slots)} of tasks"
        )
    return list(zip(names, slots, cpus))


def _read(environ: Mapping[str, str], name: str, parser: Callable[[str], List[_T]]) -> List[_T]:
    text = environ.get(name)
    if not text:
        raise ValueError(f"{name} is not set")
    try:
        return parser(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text[:200]!r}") from error


def _asked_for_tasks(environ: Mapping[str, str], job: JobSpec, suffixes: Sequence[str]) -> bool:
    """True where the job asked for tasks, and the run does not ask for another number of ranks."""
    asked = [environ.get(f"SLURM_NTASKS{each}", "") for each in suffixes]
    if not all(asked):
        return False
    if not all(each.isdecimal() for each in asked):
        raise ValueError(f"SLURM_NTASKS is {', '.join(map(repr, asked))}")
    return job.ranks is None or job.processes == sum(map(int, asked))


def is_in_step(environ: Mapping[str, str]) -> bool:
    """True where the variables of tasks are those of a step (`srun`), not of its job.

    The shell of salloc may be a step, but has those of its job.
    """
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _SPECIAL


def starts_alone(environ: Mapping[str, str], pid: int) -> bool:
    """True in the one task of a step that a person types in: the shell of `srun -n 4 --pty bash`.

    The shells of the other tasks have no input and have ended. `pid` is this process, which is
    not itself what srun has started.
    """
    typed = bool(environ.get("SLURM_PTY_PORT")) and environ.get("SLURM_PROCID") == "0"
    return typed and environ.get("SLURM_TASK_PID") != str(pid)


def of_whole_job(environ: Mapping[str, str], job: Mapping[str, str]) -> Dict[str, str]:
    """The environment of a step with the tasks of its whole job, of which `scontrol` says `job`.

    ValueError where it does not say how many tasks each node has.
    """
    cpus = parse.counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    tasks, each = parse.number(job.get("NumTasks", "")), parse.number(job.get("CPUs/Task", "")) or 1
    most = parse.number(job.get("NtasksPerN:B:S:C", ""))
    room = [min(max(1, count // each), most or count) for count in cpus]
    per_node = [1] * len(room)  # each node has a task; beyond that, the first nodes are filled
    for number, count in enumerate(room):
        per_node[number] += max(0, min(count - 1, tasks - sum(per_node)))
    for number in range(tasks - sum(per_node)):  # of `--overcommit`
        per_node[number % len(per_node)] += 1
    if sum(per_node) != tasks:
        raise ValueError("SLURM_TASKS_PER_NODE is that of a step, and that of its job is not known")
    texts = {"SLURM_NTASKS": str(tasks), "SLURM_TASKS_PER_NODE": ",".join(map(str, per_node))}
    return {**environ, **texts}


def connection(node: str, cpus: int, job: str, steps: Sequence[str]) -> Dict[str, Any]:
    """How the lead host starts a command on another node: as a step of `job` beside all others.

    The step gets all that the job has there.
    """
    words = [
        "srun", f"--jobid={job}", *steps, "--quiet", "-N1", "-n1", f"-c{cpus}", "-w", node,
        "--mem=0", "--mpi=none", "--export=ALL", "--chdir=/", "--kill-on-bad-exit=0", "--wait=0",
    ]  # fmt: skip
    return {"kind": "exec", "argv": words}


def step_options(version: Tuple[int, int], settings: Mapping[str, str]) -> List[str]:
    """What a step needs that is to share all that the job has on a node.

    `settings` is Slurm's configuration; version (0, 0) and none of them: not known.
    """
    overlap = ["--overlap"] if version >= _OVERLAP or version == (0, 0) else []
    binds = settings.get("TaskPlugin", "task/none") not in ("task/none", "(null)", "")
    return [*overlap, *(["--cpu-bind=none"] if binds else [])]
