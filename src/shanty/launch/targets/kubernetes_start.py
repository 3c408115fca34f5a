"""Prepares the pods of a run as hosts are prepared, and starts the run on the first of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from shanty.launch import interpreter, mpis, settings
from shanty.launch.cluster import connect
from shanty.launch.cluster.parallel import Say, side_by_side
from shanty.launch.cluster.prepare import place_workspace
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.containers import inside
from shanty.launch.containers.inside import Furnished
from shanty.launch.containers.options import IMAGE_MPI, refuse_without_python
from shanty.launch.host import Host
from shanty.launch.targets.base import plan_of, scratch_of
from shanty.launch.targets.ssh import shared_out
from shanty.runtime.errors import LaunchError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Node
from shanty.runtime.resolve import AttemptSettings, resolve, shim_scripts
from shanty.runtime.rundir import RunDir, home, read_json, write_json
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
    committed: Callable[[list[dict[str, Any]]], None],
) -> list[RpcClient]:
    """Prepare the pods at `addresses`, in their order, and start the run; returns their clients.

    `committed` hears of the hosts when the run is about to be handed over. Raises ShantyError of
    all kinds.
    """
    place, environ = home(os.environ), {**os.environ, **job.env}
    clients = connect.connect(
        hosts, terminal=False, progress=lambda host, text: say(f"{host.name}: {text}")
    )
    surveys = side_by_side(clients, lambda client: client.ask("survey").values)
    _try_calls(clients[0], hosts, addresses, port)
    installation = (
        [inside.mpi_of_image(job.image or "", clients[0])] * len(clients)
        if job.mpi == IMAGE_MPI
        else mpis.select(job.mpi, place, environ)
    )
    python = interpreter.choose(job.python, Path(job.workdir), environ)
    users = {host.name: f"{run.id}.{number}" for number, host in enumerate(hosts)}
    placed = place_workspace(clients, job, users, place, say)
    furnished = inside.furnish(
        clients, installation, python, job.environment, place, os.environ, say
    )
    for client in clients:
        for what, fix in client.notes:
            warn(f"{client.host.name}: {what} ({fix})")
    cores = shared_out(surveys)
    nodes = [
        _node(number, client, surveys[client.host.name], address, port, run, one)._replace(
            workdir=placed[client.host.name], cores=cores[client.host.name]
        )
        for number, (client, address, one) in enumerate(
            zip(clients, addresses, furnished, strict=True)
        )
    ]
    refuse_without_python(job, nodes)
    own = settings.load(place)
    attempt = resolve(
        job, nodes,
        AttemptSettings(
            run=run.id, scratch=scratch_of(run), scripted=True, log_limit=own.log_limit,
            given=job.env, networks=tuple(f"{at}/128" for at in addresses if ":" in at),
        ),
    )  # fmt: skip
    plan = plan_of(job, run, own, attempt)
    hostfile = FLAVOURS[plan.lead.installation.flavour].hostfile(attempt.layout.hosts)
    run.hostfile.write_text(hostfile)
    write_json(run.plan, plan.to_json())
    shims = shim_scripts(plan.lead, raw=plan.raw, workers=len(nodes) > 1)
    files: dict[str, list[Any]] = {f"bin/{name}": [text, 0o755] for name, text in shims.items()}
    files["hostfile"] = [hostfile, 0o644]
    committed([asdict(host) for host in hosts])
    clients[0].ask(
        "begin-run", run=run.id, plan=plan.to_json(), job=job.to_json(),
        status={**(read_json(run.status) or {}), "reason": ""}, files=files, stdin=False,
    )  # fmt: skip
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


def _node(
    number: int,
    client: RpcClient,
    survey: Survey,
    address: str,
    port: int,
    run: RunDir,
    furnished: Furnished,
) -> Node:
    host = client.host
    return Node(
        number=number,
        name=host.name,
        address=address,
        slots=host.slots or 1,
        cores=1,
        run_dir=str(PurePosixPath(client.home, "work", f"{run.id}.{number}")),
        workdir="",
        python=furnished.python,
        agent_python=client.python,
        package=client.root,
        mpi=asdict(furnished.installation),
        names=tuple(sorted({host.name, str(survey["hostname"]), address})),
        connection={"kind": "pod", "port": port},
        search_path=survey["path"],
        mpi4py=furnished.mpi4py,
        segments=f"/dev/shm/{PurePosixPath(scratch_of(run)).name}",
        fabric=bool(survey["fabrics"]),
        interfaces=_interfaces(survey, address),
    )


def _interfaces(survey: Survey, address: str) -> tuple[tuple[str, str], ...]:
    """The interface of a pod that the others reach; no other pod can look up its name."""
    names = [one["interface"] for one in survey["addresses"] if one["address"] == address]
    return ((names[0], address),) if names else ()
