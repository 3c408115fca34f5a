"""Runs a run's agents on the first of its nodes: `boot.py slurm.batch RUN_DIR`, or with `after`.

Slurm starts the script (`script`), and the script this. It writes the nodes down, starts the
agents, passes Slurm's warning on and ends with the run's exit code. A job that was queued again
begins another attempt. `after` checks whether this was killed, and ends what was left then.
`step WORDS…` starts the script in a job of the user's own, whose end Slurm does not report.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Mapping, Sequence

from shanty.runtime import foreign_variables, run_agents, run_status, site
from shanty.runtime.connections import REAP, request_command, run_each
from shanty.runtime.controller.queue_ending import GRACE, WARNING, WHY
from shanty.runtime.errors import LaunchError, UsageError
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.rank.srun import ALLOCATION
from shanty.runtime.rundir import RunDir, append_line, read_json, write_json
from shanty.runtime.site import Site
from shanty.runtime.slurm import allocation, parse, tools
from shanty.runtime.slurm.sbatch_options import SIGNAL, of_job
from shanty.runtime.spec import Failure, JobSpec, State

SCRIPT = "slurm.sh"
AFTER = "after"
STEP = "step"
_PASSED_ON = ("ALRM", "USR1", "USR2")  # to ranks with a handler, as the warning is
_KILL_WAIT = 30.0  # seconds; Slurm's own default
_MARGIN = 3.0  # of it, for the agents to clean up and to write the end down
_TO_REAP = 15.0  # seconds
_TO_CLEAN = 20.0  # seconds for a node agent that has lost its controller
_LOOK = 0.1
_COUNTED = re.compile(r"srun: error: \S+: tasks? \S+: (Exited|Terminated|Killed)")  # not the cause


def script(run: RunDir, boot: Sequence[str], warning: str) -> str:
    """The text of the batch script: the least that can look after its own child's end."""
    words = shlex.join([*boot, "slurm.batch", str(run.path)])
    python = shlex.quote(boot[0])
    passed = sorted({warning, *_PASSED_ON})
    traps = "\n".join(
        f'trap \'[ -z "$child" ] || kill -s {name} "$child"\' {name}' for name in passed
    )
    ignored = f"trap '' {' '.join(passed)}"
    return f"""\
#!/bin/sh
# Written by shanty for the run {run.id}. Slurm starts it on the first node of the job.
if [ ! -x {python} ]; then
    printf 'shanty: no Python found at %s on %s\\n' {python} "$(hostname)" >&2
    exit 69
fi
child=
{traps}
trap : TERM INT HUP
({ignored}; exec {words} </dev/null) & # until it has a handler, which takes a moment
child=$!
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
[ "$code" -lt 128 ] || {words} {AFTER}
exit "$code"
"""


def main(argv: List[str]) -> int:
    """Run the agents of the run `argv[0]`, have a step do so, or look after their end."""
    run = RunDir(Path(argv[0]))
    if argv[1:2] == [STEP]:
        return _stepped(run, argv[2:])
    plan, values = read_plan(run), read_json(run.job)
    if plan is None or values is None:
        print(f"shanty: {run.plan} or {run.job} is missing or damaged", file=sys.stderr)
        return LaunchError.exit_code
    if argv[1:] == [AFTER]:
        return _after(run, plan)
    _outlive_signals()  # the controller gets them as well, and decides
    os.environ.pop("SSH_ORIGINAL_COMMAND", None)
    if run_status.read_status(run).state.final:
        return 0  # it was stopped as its nodes came
    settings = tools.settings()
    try:
        job = JobSpec.from_json(values)
        plan = _begun(run, plan)
        if not (site.read(run) or Site()).within:  # else shanty, in the user's job, wrote them
            steps = allocation.step_options(tools.version(), settings)
            write_json(run.path / "hosts.json", allocation.nodes_of(os.environ, job, steps))
    except (ValueError, KeyError, TypeError) as error:
        failure = Failure("Slurm's variables for the nodes of the job cannot be read", str(error))
        run_status.conclude(run, State.FAILED, failure, LaunchError.exit_code)
        return LaunchError.exit_code
    found = site.read(run) or Site("slurm")
    if not found.name:  # the process that submitted us did not come to write it
        site.write(run, found._replace(name=os.environ.get("SLURM_JOB_ID", "")))
    _tell_agents(run, plan, warning := _warning(job), settings)
    return _watched(run, plan, warning)


def _warning(job: JobSpec) -> int:
    """The number of the signal with which Slurm warns."""
    name = SIGNAL
    with contextlib.suppress(UsageError):
        name = of_job(job).signal
    if name.isdigit():
        return int(name)
    return int(getattr(signal, f"SIG{name}", signal.SIGUSR1))


def _tell_agents(run: RunDir, plan: Plan, warning: int, settings: Mapping[str, str]) -> None:
    """Set what the agents are to know of Slurm."""
    wait = settings.get("KillWait", "").split(" ")[0]
    seconds = float(wait) if wait.isdigit() else _KILL_WAIT
    os.environ[GRACE] = str(max(1.0, seconds - _MARGIN))
    os.environ[WARNING] = str(warning)
    # In the user's own job we may be a step, whose variables do not fit another step.
    os.environ.setdefault(ALLOCATION, json.dumps(foreign_variables.of_allocation(os.environ)))
    os.environ[WHY] = shlex.join(word_command(plan.lead.host_boot, run, os.environ))


def word_command(boot: Sequence[str], run: RunDir, environ: Mapping[str, str]) -> List[str]:
    """The command that asks why Slurm ends the job that we are in."""
    restarts = environ.get("SLURM_RESTART_COUNT") or "0"
    return [*boot, "slurm.word", str(run.path), environ.get("SLURM_JOB_ID", ""), restarts]


def _watched(run: RunDir, plan: Plan, warning: int) -> int:
    """Start the agents, and stay with them to their end; returns the run's exit code."""
    warned: List[int] = []
    for number in {warning, *(getattr(signal, f"SIG{name}") for name in _PASSED_ON)}:
        signal.signal(number, lambda number, _: warned.append(number))
    words = [*plan.lead.host_boot, "agent.start", str(run.path)]
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    while True:
        try:
            child.wait(0.5)
            break
        except subprocess.TimeoutExpired:
            while warned:
                with contextlib.suppress(OSError):
                    run_agents.leave(run, {"kind": "warn", "signal": warned.pop(0)})
    return _end_of(run, child.returncode)


def _outlive_signals() -> None:
    """Outlive the signals that end a job; unlike SIG_IGN, a handler is not inherited."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


def _end_of(run: RunDir, code: int) -> int:
    """The run's exit code; a run whose agents have disappeared is lost."""
    until = time.monotonic() + _TO_CLEAN
    while run_agents.has_agents_here(run) and time.monotonic() < until:
        time.sleep(_LOOK)  # the node agent cleans up after a controller that was killed
    status = run_status.read_status(run)
    if not status.state.final and read_json(run.agents) is not None:
        if status.state is State.PENDING:
            return 0  # Slurm has queued it again
        status = run_agents.status_of(run)
    if not status.state.final:
        failure = Failure(
            "the run's agents never came up",
            f"the first of them ended with {code}",
            "see `shanty logs --agent`; run again",
        )
        status = run_status.conclude(run, State.FAILED, failure, LaunchError.exit_code)
    return min(max(status.exit_code or 0, 0), 255)


def _after(run: RunDir, plan: Plan) -> int:
    """End what is left on all nodes after everything of ours was killed on the first."""
    _end_of(run, -signal.SIGKILL)
    run_each([request_command(node, plan.lead, REAP) for node in plan.workers], _TO_REAP)
    return 0


def _stepped(run: RunDir, words: Sequence[str]) -> int:
    """Run `words`, which start the script on the first node; without agents the run has failed."""
    _outlive_signals()  # `words` get them, too; we see their end
    try:
        code = subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr, flush=True)
        code = LaunchError.exit_code
    if read_json(run.agents) is None:
        failure = Failure(
            "the run's agents never came up on the first node of the job",
            _last_words(run) or f"the command that starts them ended with {code}",
            "see `shanty logs --agent`; run again",
        )
        run_status.conclude(run, State.FAILED, failure, LaunchError.exit_code)
    return code


def _last_words(run: RunDir) -> str:
    """The last line of the agents' log, but for those in which srun counts how tasks ended."""
    lines = run.agent_log.read_text(errors="replace").splitlines() if run.agent_log.exists() else []
    words = [line.strip() for line in lines if line.strip() and not _COUNTED.match(line)]
    return words[-1] if words else ""


def _begun(run: RunDir, plan: Plan) -> Plan:
    """The plan of the attempt that begins now: another one where the job was queued again."""
    if plan.waits:
        return plan
    number = max(plan.attempt.number, *run.attempts()) + 1
    status: Any = run_status.read_status(run)
    run_agents.end_remains(run)  # this may be a node of the attempt before
    for path in (run.path.parent.parent / "work").glob(f"{run.path.name}.*"):
        for name in ("agents.json", "plan.json", "metrics.jsonl"):
            (path / name).unlink(missing_ok=True)
    run.agents.unlink(missing_ok=True)
    plan = plan._replace(waits=True, attempt=plan.attempt._replace(number=number))
    write_json(run.plan, plan.to_json())
    why = status.reason or "Slurm has restarted its job"
    hosts = parse.hosts(os.environ.get("SLURM_JOB_NODELIST", ""))
    event = {"event": "attempt", "number": number, "hosts": hosts, "failure": {"what": why}}
    append_line(run.events, {"time": time.time(), **event})
    status = replace(
        status,
        state=State.STARTING,
        attempt=number,
        reason=f"attempt {number} on {', '.join(hosts)}: {why}",
        up=0,
        joined=0,
        stalled=None,
        began=None,
        started=None,
    )
    write_json(run.status, status.to_json())
    return plan
