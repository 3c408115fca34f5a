"""The nodes of a job of Slurm's: which, with how many slots, and how commands start on them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from shanty.runtime.slurm import parse
from shanty.runtime.spec import JobSpec

_OVERLAP = (20, 11)  # before, steps of a job may share its nodes by themselves
_KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JWT", "SLURM_CLUSTERS")
# What srun takes for options, and what a step that runs us may have got.
_INPUTS = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_TASKS_PER_NODE", "SLURM_DISTRIBUTION",
    "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_GPU", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS_PER_GPU", "SLURM_GPU_BIND", "SLURM_GRES", "SLURM_EXCLUSIVE", "SLURM_EXACT",
    "SLURM_OVERCOMMIT", "SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_EXPORT_ENV",
    "SLURM_MPI_TYPE",
    "SLURM_LABELIO", "SLURM_UNBUFFEREDIO", "SLURM_WORKING_DIR", "SLURM_TIMELIMIT", "SLURM_WAIT",
    "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT", "SLURM_PROCID", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_GTIDS", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
)  # fmt: skip


def nodes_of(
    environ: Mapping[str, str], job: JobSpec, steps: Sequence[str]
) -> List[Dict[str, Any]]:
    """The nodes of the job that this is in, as `hosts.json` has them, this node first.

    `steps` are the options for steps (`step_options`); ValueError for what cannot be read.
    Slots are what Slurm gave: the tasks where the job asked for ranks, else the CPUs.
    """
    names = parse.hosts(environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""))
    if not names:
        raise ValueError("SLURM_JOB_NODELIST is empty")
    cpus = parse.counts(environ.get("SLURM_JOB_CPUS_PER_NODE") or f"1(x{len(names)})")
    slots = list(cpus)
    tasks = environ.get("SLURM_TASKS_PER_NODE", "")
    if tasks and _asked_for_tasks(environ, job):
        each = job.cpus_per_rank or 1
        slots = [count * each for count in parse.counts(tasks)]
    if not len(cpus) == len(slots) == len(names):
        raise ValueError(
            f"{len(names)} nodes, but {len(cpus)} counts of CPUs, {len(slots)} of tasks"
        )
    here = environ.get("SLURMD_NODENAME", "")
    found = [
        {
            "name": name,
            "slots": slot,
            "cores": count,
            "connection": connection(name, count, environ, steps),
        }
        for name, slot, count in zip(names, slots, cpus)
    ]
    return sorted(found, key=lambda host: host["name"] != here)


def _asked_for_tasks(environ: Mapping[str, str], job: JobSpec) -> bool:
    asked = environ.get("SLURM_NTASKS") or environ.get("SLURM_NPROCS")
    if not asked:
        return False
    return job.ranks is None or str(job.ranks) == asked


def connection(
    node: str, cpus: int, environ: Mapping[str, str], steps: Sequence[str]
) -> Dict[str, Any]:
    """How the lead host starts a command on another node: as a step beside all others.

    The step gets all that the job has there, and none of the job's wishes for its own steps:
    `srun` would take these from its environment.
    """
    meant = {name for name in environ if name.startswith(("SLURM_", "SRUN_"))}
    names = sorted({*meant, *_INPUTS}.difference(_KEPT))
    unset = [word for name in names for word in ("-u", name)]
    words = [
        "env", *unset, "srun", f"--jobid={environ.get('SLURM_JOB_ID', '')}", *steps, "--quiet",
        "-N1", "-n1", f"-c{cpus}", "-w", node, "--mem=0", "--mpi=none", "--export=ALL",
        "--chdir=/", "--kill-on-bad-exit=0", "--wait=0",
    ]  # fmt: skip
    return {"kind": "exec", "argv": words}


def step_options(version: Tuple[int, int], settings: Mapping[str, str]) -> List[str]:
    """What a step needs that is to share all that the job has on a node.

    `settings` is Slurm's configuration; version (0, 0) and none of them: not known.
    """
    overlap = ["--overlap"] if version >= _OVERLAP or version == (0, 0) else []
    binds = settings.get("TaskPlugin", "task/none") not in ("task/none", "(null)", "")
    return [*overlap, *(["--cpu-bind=none"] if binds else [])]
