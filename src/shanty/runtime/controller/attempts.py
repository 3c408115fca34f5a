"""Plans an attempt on the lead host: the first on hosts that came late, or another after a failure.

Where a queue gives the hosts, its batch script writes them into the run's `hosts.json`, the lead
host first, and starts the agents on the lead host:

    [{"name": "n1", "connection": {"kind": "exec", "argv": ["srun", "-w", "n1"]}, "slots": 4}, …]

`connection` is how the lead host starts a command on the host (`connections`). Optional are
"slots" (default: the number of cores), "address" (default: the name) and "cores" (the cores that
the run may use). All hosts see the run's directory, the workspace, the MPI and the Python at the
same paths.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from shanty.runtime import platform
from shanty.runtime.connections import REAP, RESET, command, request_command, run_each
from shanty.runtime.containers.container import container_name
from shanty.runtime.controller.queue_ending import WARNING
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.plan import Node, Plan
from shanty.runtime.resolve import agent_files, settled
from shanty.runtime.run_agents import make_scratch
from shanty.runtime.rundir import RunDir, read_json, write_files, write_json
from shanty.runtime.spec import JobSpec

_TO_DESCRIBE = 30.0  # seconds for a host to say what it is
_TO_RESET = 15.0  # seconds for a worker to be ready for another attempt


def main(_argv: List[str]) -> int:
    """Print the facts of this host, for the controller on the lead host."""
    json.dump(_facts(), sys.stdout)
    return 0


def begin(run: RunDir, plan: Plan) -> Tuple[RunDir, Plan]:
    """Make what the agents of an attempt need.

    ValueError, KeyError or TypeError for damaged files; otherwise raises as `plan_on_hosts`, and
    as `plan_again` when it cannot be written.
    """
    if plan.waits:
        plan = plan_on_hosts(run, plan)
    if plan.attempt.number > 1:
        run = RunDir(run.path, plan.attempt.number)
        run.create_attempt()
        if not plan.scripted:
            make_scratch(plan)
    return run, plan


def plan_on_hosts(run: RunDir, plan: Plan) -> Plan:
    """Return the plan on the hosts that the queue gave, after writing it down.

    PrepareError when a host does not answer, UsageError when the job does not fit on them.
    """
    given = json.loads((run.path / "hosts.json").read_text())
    if not given:
        raise UsageError("no host was given to the run")
    template = plan.attempt.nodes[0]
    nodes = [_node(number, host, template, run) for number, host in enumerate(given)]
    facts = [_facts(), *_facts_of(nodes[1:], nodes[0])]
    nodes = [_with_facts(node, host, seen) for node, host, seen in zip(nodes, given, facts)]
    return _planned(run, plan, nodes, plan.attempt.number)


def plan_again(run: RunDir, plan: Plan) -> Plan:
    """Return the plan of the next attempt, on the hosts that still answer, after writing it down.

    UsageError when the job no longer fits there. StorageError and OSError when the plan cannot be
    written.
    """
    nodes = [plan.lead, *_request_of_workers(plan, RESET)]
    return _planned(run, plan, nodes, plan.attempt.number + 1)


def end_attempts(plan: Plan) -> None:
    """Have the workers remove the run's key, since no other attempt follows."""
    _request_of_workers(plan, REAP)


def _planned(run: RunDir, plan: Plan, nodes: Sequence[Node], number: int) -> Plan:
    job = JobSpec.from_json(read_json(run.job) or {})
    before = plan.attempt
    networks = before.layout.networks if number > 1 else ()
    plan = settled(plan, job, nodes, os.environ, networks=networks, number=number)
    if WARNING in os.environ:
        plan.attempt.shared[WARNING] = os.environ[WARNING]
    plan = plan._replace(attempt=plan.attempt._replace(network=before.network))
    write_files(run, agent_files(plan))
    write_json(run.plan, plan.to_json())
    return plan


def _request_of_workers(plan: Plan, request: str) -> List[Node]:
    """Send a request to all workers at once; return the workers that carried it out."""
    asked = [request_command(node, plan.lead, request) for node in plan.workers]
    answers = run_each(asked, _TO_RESET)
    return [node for node, answer in zip(plan.workers, answers) if answer.code == 0]


def _node(number: int, host: Mapping[str, Any], template: Node, run: RunDir) -> Node:
    own = run.path.parent.parent / "work" / f"{run.id}.{number}"
    folder = run.path if number == 0 else own
    container = template.container
    if container:
        container = {**container, "name": container_name(folder), "run": str(folder)}
    return template._replace(
        container=container,
        number=number,
        name=host["name"],
        address=host.get("address", host["name"]),
        connection=host.get("connection", {}),
        run_dir=str(folder),
    )


def _with_facts(node: Node, host: Mapping[str, Any], facts: Mapping[str, Any]) -> Node:
    cores = min(int(facts["cores"]), int(host.get("cores") or facts["cores"]))
    slots = host.get("slots")
    names = {node.name, node.address, str(facts["hostname"])}
    return node._replace(
        cores=cores,
        slots=cores if slots is None else int(slots),
        names=tuple(sorted(names)),
        limit=str(facts["limit"]),
    )


def _facts() -> Dict[str, Any]:
    return {
        "cores": platform.usable_cores(),
        "limit": platform.limit_on_cores(),
        "hostname": os.uname().nodename,
    }


def _facts_of(workers: Sequence[Node], lead: Node) -> List[Dict[str, Any]]:
    """Returns the facts of the workers, which are asked all at once."""
    asked = [command(node, lead, [*node.host_boot, "agent.attempts"]) for node in workers]
    found = []
    for node, answer in zip(workers, run_each(asked, _TO_DESCRIBE)):
        try:
            found.append(json.loads(answer.out))
        except ValueError:
            what = f"no command can be started on host {node.name}"
            why = answer.err.strip() or f"the command ended with {answer.code}"
            if answer.code is None:
                what = f"host {node.name} does not answer"
                why = f"it sent nothing for {_TO_DESCRIBE:g} s"
            raise PrepareError(what, why, "check the host; run again") from None
    return found
