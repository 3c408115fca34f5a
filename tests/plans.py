"""Hosts, plans and worlds of runs that never start."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.messages import Report
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Attempt, Leftovers, Limits, Node, Plan
from shanty.runtime.resolve import layout_of
from shanty.runtime.spec import JobSpec, Program

MPI = Installation("openmpi5", "5", "/p", "/p/bin/mpirun", "/p/lib/libmpi.so.40", "shanty")


def node(number: int = 0, slots: int = 4, **more: Any) -> Node:
    """A host of a run, 10.0.0.<number + 1>."""
    values: dict[str, Any] = {
        "name": f"lab{number}",
        "address": f"10.0.0.{number + 1}",
        "cores": 4,
        "run_dir": "/runs/r",
        "workdir": "/home/ann/digits",
        "python": "python",
        "agent_python": sys.executable,
        "package": "/package",
        "mpi": asdict(MPI),
    }
    return Node(number=number, slots=slots, **{**values, **more})


def plan_of(ranks: int | None, start_timeout: float = 60.0, **placement: int) -> Plan:
    layout = asdict(layout_of(JobSpec(Program(("x",)), ranks=ranks), [node()]))
    attempt = Attempt((node(),), (), {**layout, "ranks": ranks}, {}, {}, placement)
    limits = Limits(1 << 30, 5.0, start_timeout, None, "warn", 60.0)
    return Plan("r", 0.0, ranks is None, limits, Leftovers((), ()), "/tmp/s", True, attempt)


def world_of(size: int, *hosts: str, launcher: Installation = MPI, spares: int = 0) -> MpiWorld:
    """The world of a run whose first ranks have started, one on each of the hosts."""
    world = MpiWorld(size, launcher, spares)
    for rank, host in enumerate(hosts):
        world.report(Report({"event": "started", "rank": rank, "size": size, "host": host}), 0.5)
    return world
