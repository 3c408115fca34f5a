"""Prepares the pods of a run as hosts are prepared, and starts the run on the first of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from shanty.launch import settings
from shanty.launch.provision.node import HostPlace
from shanty.launch.provision.provision import provision, to_bring
from shanty.launch.provision.session import HostSession, nodes_of, shared_out
from shanty.launch.targets.base import Surroundings, begin_request, plan_of, scratch_of
from shanty.launch.transport import connect
from shanty.launch.transport.parallel import Say, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import LaunchError
from shanty.runtime.resolve import settled
from shanty.runtime.rundir import RunDir, home, write_json
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec

Survey = dict[str, Any]


def start_in(
    hosts: Sequence[Host],
    addresses: Sequence[str],
    port: int,
    job: JobSpec,
    run: RunDir,
    say: Say,
    warn: Say,
    committed: Callable[[Sequence[Host]], None],
) -> list[RpcClient]:
    """Prepare the pods at `addresses`, in their order, and start the run; returns their clients.

    `committed` is called with the hosts just before the run is handed over. Raises ShantyError of
    all kinds.
    """
    place = home(os.environ)
    here = Surroundings(place, os.environ, settings.load(place), say, warn)
    clients = connect.connect(
        hosts, terminal=False, progress=lambda host, text: say(f"{host.name}: {text}")
    )
    surveys = side_by_side(clients, lambda client: client.ask("survey").values)
    _try_calls(clients[0], hosts, addresses, port)
    bring = to_bring(job, here)
    cores = shared_out(surveys)
    sessions = [
        _session(client, surveys[client.host.name], address, port, cores[client.host.name])
        for client, address in zip(clients, addresses, strict=True)
    ]
    ready = provision(sessions, job, bring, run.id, here)
    nodes = nodes_of(sessions, ready, run.id, scratch_of(run))
    networks = tuple(f"{at}/128" for at in addresses if ":" in at)
    plan = plan_of(job, run, here.settings, nodes)
    plan = settled(plan, job, nodes, here.environ, networks=networks)
    write_json(run.plan, plan.to_json())
    begin = begin_request(plan, job, run)
    run.hostfile.write_text(begin["files"]["hostfile"][0])
    begin["status"]["reason"] = ""
    committed(hosts)
    clients[0].ask("begin-run", **begin, stdin=False)
    return clients


def _try_calls(lead: RpcClient, hosts: Sequence[Host], addresses: Sequence[str], port: int) -> None:
    """LaunchError where the first pod does not reach all others."""
    pods = [[host.name, at, port] for host, at in zip(hosts, addresses, strict=True)][1:]
    failed = lead.ask("pods-reach", pods=pods).values["failed"] if pods else {}
    if failed:
        raise LaunchError(
            f"pod {lead.host.name} does not reach {', '.join(failed)}",
            "; ".join(dict.fromkeys(failed.values())),
            "the pods of a run need TCP to each other at all ports: see the namespace's network "
            "policies (kubectl get networkpolicies)",
        )


def _session(client: RpcClient, survey: Survey, address: str, port: int, cores: int) -> HostSession:
    host, found = client.host, survey["addresses"]
    place = HostPlace(
        host.name,
        address,
        host.slots or 1,
        cores,
        tuple(sorted({host.name, str(survey["hostname"]), address})),
        {"kind": "pod", "port": port},
        # Of the interface that the other pods reach; no other pod can look up its name.
        tuple((one["interface"], address) for one in found if one["address"] == address)[:1],
    )
    return HostSession(place, survey, client)
