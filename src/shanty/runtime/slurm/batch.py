"""Runs a run's agents on the first of its nodes: `boot.py slurm.batch RUN_DIR`, or with `after`.

Slurm starts the script (`script`), and the script this. It writes the nodes down, starts the
agents, passes Slurm's warning on and ends with the run's exit code. A job that was queued again
begins another attempt. `after` looks whether it was itself killed, and ends what that left.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from shanty.runtime.agent import control
from shanty.runtime.agent.connections import REAP, request_command, run_each
from shanty.runtime.agent.queue_word import GRACE, WARNING, WHY
from shanty.runtime.agent.queued import is_within
from shanty.runtime.errors import LaunchError, UsageError
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.rundir import RunDir, append_line, read_json, write_json
from shanty.runtime.slurm import parse, tools
from shanty.runtime.spec import Failure, JobSpec, State

SCRIPT = "slurm.sh"
AFTER = "after"
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
_KILL_WAIT = 30.0  # seconds; Slurm's own default
_MARGIN = 3.0  # of it, for the agents to clean up and to write the end down
_TO_REAP = 15.0  # seconds


def script(run: RunDir, boot: Sequence[str], warning: str) -> str:
    """The text of the batch script: the least that can look after its own child's end."""
    words = shlex.join([*boot, "slurm.batch", str(run.path)])
    python = shlex.quote(boot[0])
    return f"""\
#!/bin/sh
# Written by shanty for the run {run.id}. Slurm starts it on the first node of the job.
if [ ! -x {python} ]; then
    echo "shanty: there is no Python at {boot[0]} on $(hostname)" >&2
    exit 69
fi
{words} </dev/null &
child=$!
trap 'kill -s {warning} "$child"' {warning}
trap : TERM INT HUP
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
[ "$code" -lt 128 ] || {words} {AFTER}
exit "$code"
"""


def main(argv: List[str]) -> int:
    """Run the agents of the run `argv[0]`, or look after their end."""
    run = RunDir(Path(argv[0]))
    plan = read_plan(run)
    job = read_json(run.job)
    if plan is None or job is None:
        print(f"shanty: {run.plan} or {run.job} is missing or damaged", file=sys.stderr)
        return LaunchError.exit_code
    if argv[1:] == [AFTER]:
        return _after(run, plan)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the controller has got it as well, and decides
    os.environ.pop("SSH_ORIGINAL_COMMAND", None)
    if control.read_status(run).state.final:
        return 0  # it was stopped as its nodes came
    try:
        plan = _begun(run, plan)
        if not is_within(run):  # else whoever is in the job has written them
            hosts = nodes_of(os.environ, JobSpec.from_json(job), tools.version())
            write_json(run.path / "hosts.json", hosts)
    except (ValueError, KeyError, UsageError) as error:
        failure = Failure("Slurm's words for the job's nodes cannot be read", str(error))
        control.conclude(run, State.FAILED, failure, LaunchError.exit_code)
        return LaunchError.exit_code
    site = read_json(run.site) or {}
    if not site.get("name"):  # whoever has submitted us did not come to write it
        write_json(run.site, {**site, "name": os.environ.get("SLURM_JOB_ID", "")})
    os.environ[WHY] = shlex.join(_why(run, plan))
    return _watched(run, plan, _warned_by(job))


def _why(run: RunDir, plan: Plan) -> List[str]:
    restarts = os.environ.get("SLURM_RESTART_COUNT") or "0"
    number = os.environ.get("SLURM_JOB_ID", "")
    return [*plan.lead.boot, "slurm.word", str(run.path), number, restarts]


def _warned_by(job: Mapping[str, Any]) -> int:
    from shanty.runtime.slurm.request import SIGNAL, of_job

    with contextlib.suppress(UsageError, KeyError, TypeError, ValueError):
        name = of_job(JobSpec.from_json(job)).signal
        return int(name) if name.isdigit() else int(getattr(signal, f"SIG{name}"))
    return int(getattr(signal, f"SIG{SIGNAL}"))


def _watched(run: RunDir, plan: Plan, warning: int) -> int:
    """Start the agents, and stay with them to their end; returns the run's exit code."""
    wait = tools.settings().get("KillWait", "").split(" ")[0]
    seconds = float(wait) if wait.isdigit() else _KILL_WAIT
    os.environ[GRACE] = str(max(1.0, seconds - _MARGIN))
    os.environ[WARNING] = str(warning)
    warned: List[float] = []
    signal.signal(warning, lambda *_: warned.append(time.time()))
    words = [*plan.lead.boot, "agent.start", str(run.path)]
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=lambda: _default(warning))
    while True:
        try:
            child.wait(0.5)
            break
        except subprocess.TimeoutExpired:
            if warned:
                warned.clear()
                with contextlib.suppress(OSError):
                    control.leave(run, {"kind": "warn", "signal": warning})
    return _end_of(run, child.returncode)


def _default(warning: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, warning):
        signal.signal(number, signal.SIG_DFL)


def _end_of(run: RunDir, code: int) -> int:
    """The run's exit code; a run whose agents are gone without a word is lost."""
    status = control.read_status(run)
    if not status.state.final and read_json(run.agents) is not None:
        if status.state is State.PENDING:
            return 0  # Slurm has queued it again
        status = control.status_of(run)
    if not status.state.final:
        failure = Failure(
            "the run's agents never came up",
            f"the first of them ended with {code}",
            "see `shanty logs --agent`; run again",
        )
        status = control.conclude(run, State.FAILED, failure, LaunchError.exit_code)
    return min(max(status.exit_code or 0, 0), 255)


def _after(run: RunDir, plan: Plan) -> int:
    """End what is left on all nodes after everything of ours was killed on the first."""
    with contextlib.suppress(ValueError):
        _end_of(run, -signal.SIGKILL)
    run_each([request_command(node, plan.lead, REAP) for node in plan.workers], _TO_REAP)
    return 0


def _begun(run: RunDir, plan: Plan) -> Plan:
    """The plan of the attempt that begins now: another one where the job was queued again."""
    if plan.waits:
        return plan
    number = max(plan.attempt.number, *run.attempts()) + 1
    status = control.read_status(run)
    control.end_remains(run)  # this may be the node of the attempt before
    for path in (run.path.parent.parent / "work").glob(f"{run.path.name}.*"):
        for name in ("agents.json", "plan.json", "metrics.jsonl"):
            (path / name).unlink(missing_ok=True)
    run.agents.unlink(missing_ok=True)
    plan = plan._replace(waits=True, attempt=plan.attempt._replace(number=number))
    write_json(run.plan, plan.to_json())
    reason = f"attempt {number}: {status.reason or 'Slurm has begun the job anew'}"
    status = replace(
        status, state=State.STARTING, attempt=number, reason=reason, up=0, joined=0, stalled=None,
        began=None, started=None,
    )  # fmt: skip
    write_json(run.status, status.to_json())
    append_line(run.events, {"time": time.time(), "event": "attempt", "number": number,
                             "hosts": [], "failure": {"what": status.reason}})  # fmt: skip
    return plan


# ------------------------------------------------------------------------------------ the nodes


def nodes_of(
    environ: Mapping[str, str], job: JobSpec, version: Tuple[int, int]
) -> List[Dict[str, Any]]:
    """The nodes of the job that this is in, as `hosts.json` has them, this node first.

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
            "connection": connection(name, count, environ, version),
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
    node: str, cpus: int, environ: Mapping[str, str], version: Tuple[int, int]
) -> Dict[str, Any]:
    """How the lead host starts a command on another node: as a step beside all others.

    The step gets all that the job has there, and none of the job's wishes for its own steps:
    `srun` would take these from its environment.
    """
    meant = {name for name in environ if name.startswith(("SLURM_", "SRUN_"))}
    names = sorted({*meant, *_INPUTS}.difference(_KEPT))
    unset = [word for name in names for word in ("-u", name)]
    overlap = ["--overlap"] if version >= _OVERLAP or version == (0, 0) else []
    words = [
        "env", *unset, "srun", f"--jobid={environ.get('SLURM_JOB_ID', '')}", *overlap,
        "--quiet", "-N1", "-n1", f"-c{cpus}", "-w", node, "--mem=0", "--cpu-bind=none",
        "--mpi=none", "--export=ALL", "--chdir=/", "--kill-on-bad-exit=0", "--wait=0",
    ]  # fmt: skip
    return {"kind": "exec", "argv": words}
