"""Plans another attempt of a run whose launch failed, without the hosts that are lost.

A script with a bug gets none: it would fail again.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Dict, List, Sequence

from shanty.runtime.agent.connections import REAP, RESET, command, worker_command
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Node, Plan
from shanty.runtime.resolve import AttemptSettings, resolve
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import JobSpec

_PATIENCE = 15.0  # seconds for a worker to be ready for another attempt


def plan_again(run: RunDir, plan: Plan) -> Plan:
    """The plan of the next attempt, on the hosts that still answer; it is written down.

    UsageError when the job does not fit there any more. StorageError and OSError when it cannot
    be written.
    """
    job = JobSpec.from_json(read_json(run.job) or {})
    answers = ask(plan.workers, plan.lead, RESET)
    nodes = [plan.lead, *(node for node in plan.workers if answers[node.number])]
    settings = AttemptSettings(
        run=plan.id,
        scratch=plan.scratch,
        scripted=plan.scripted,
        log_limit=plan.limits.log_limit,
        given=job.env if plan.scripted else {**os.environ, **job.env},
        networks=plan.attempt.layout.networks,
        number=plan.attempt.number + 1,
    )
    attempt = resolve(job, nodes, settings)._replace(network=plan.attempt.network)
    flavour = FLAVOURS[plan.lead.installation.flavour]
    run.hostfile.write_text(flavour.hostfile(attempt.layout.hosts))
    plan = plan._replace(attempt=attempt)
    write_json(run.plan, plan.to_json())
    return plan


def let_go(plan: Plan) -> None:
    """Tell the workers that there is no other attempt after all: nobody is let in any more."""
    ask(plan.workers, plan.lead, REAP)


def ask(workers: Sequence[Node], lead: Node, request: str) -> Dict[int, bool]:
    """Bring a request to all workers at once; which of them has done it, by its number."""
    processes: List[subprocess.Popen[bytes]] = []
    for node in workers:
        processes.append(
            subprocess.Popen(
                command(node, lead, worker_command(node, request)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    until, found = time.monotonic() + _PATIENCE, {}
    for node, process in zip(workers, processes):
        try:
            found[node.number] = process.wait(max(0.0, until - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            found[node.number] = False
    return found
