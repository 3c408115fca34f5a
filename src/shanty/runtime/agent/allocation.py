"""Plans a run on hosts that come after it was submitted, where a queue gives them.

Whoever brings the hosts writes them into the run's `hosts.json`, the lead host first, and starts
the agents on the lead host:

    [{"name": "n1", "connection": {"kind": "exec", "argv": ["srun", "-w", "n1"]}, "slots": 4}, …]

`connection` is how the lead host starts a command on the host (`connections`); "slots" may be
left out, for as many as the host has cores, and so may "address", where the name will do. All
hosts see the run's directory, the workspace, the MPI and the Python at the same paths.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Sequence

from shanty.runtime import platform
from shanty.runtime.agent.connections import command
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Node, Plan
from shanty.runtime.resolve import AttemptSettings, resolve, shim_scripts
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import JobSpec

_PATIENCE = 30.0  # seconds for a host to say what it is


def main(_argv: List[str]) -> int:
    """Tell what this host is, for the controller on the lead host."""
    json.dump({"cores": platform.usable_cores(), "hostname": os.uname().nodename}, sys.stdout)
    return 0


def plan_on_hosts(run: RunDir, plan: Plan) -> Plan:
    """The plan with the hosts that have come; it is written down.

    PrepareError when a host does not answer, UsageError when the job does not fit on them.
    """
    job = JobSpec.from_json(read_json(run.job) or {})
    given = json.loads((run.path / "hosts.json").read_text())
    if not given:
        raise UsageError("no host was given to the run")
    template = plan.attempt.nodes[0]
    nodes = [_node(number, host, template, run) for number, host in enumerate(given)]
    facts = [{"cores": platform.usable_cores(), "hostname": os.uname().nodename}]
    facts += _ask(nodes[1:], nodes[0])
    nodes = [_with_facts(node, host, seen) for node, host, seen in zip(nodes, given, facts)]
    settings = AttemptSettings(
        run=plan.id,
        scratch=plan.scratch,
        scripted=True,
        log_limit=plan.limits.log_limit,
        given=job.env,
    )
    plan = plan._replace(waits=False, attempt=resolve(job, nodes, settings))
    flavour = FLAVOURS[template.installation.flavour]
    run.hostfile.write_text(flavour.hostfile(plan.attempt.layout.hosts))
    for name, text in shim_scripts(plan.lead, raw=plan.raw, workers=bool(plan.workers)).items():
        shim = run.bin / name
        shim.write_text(text)
        shim.chmod(0o755)
    write_json(run.plan, plan.to_json())
    return plan


def _node(number: int, host: Mapping[str, Any], template: Node, run: RunDir) -> Node:
    own = run.path.parent.parent / "work" / f"{run.id}.{number}"
    return template._replace(
        number=number,
        name=host["name"],
        address=host.get("address", host["name"]),
        connection=host.get("connection", {}),
        run_dir=str(run.path if number == 0 else own),
    )


def _with_facts(node: Node, host: Mapping[str, Any], facts: Mapping[str, Any]) -> Node:
    cores = int(facts["cores"])
    slots = host.get("slots")
    names = {node.name, node.address, str(facts["hostname"])}
    return node._replace(
        cores=cores, slots=cores if slots is None else int(slots), names=tuple(sorted(names))
    )


def _ask(workers: Sequence[Node], lead: Node) -> List[Dict[str, Any]]:
    """What the workers say of themselves, asked all at once."""
    processes = []
    for node in workers:
        words = command(node, lead, [*node.boot, "agent.allocation"])
        processes.append(
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    found = []
    for node, process in zip(workers, processes):
        try:
            out, err = process.communicate(timeout=_PATIENCE)
            found.append(json.loads(out))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise PrepareError(
                f"host {node.name} does not answer",
                f"nothing was heard of it for {_PATIENCE:g} s",
                "look at the host; run again",
            ) from None
        except ValueError:
            raise PrepareError(
                f"no command can be started on host {node.name}",
                err.strip() or f"the command ended with {process.returncode}",
                "look at the host; run again",
            ) from None
    return found
