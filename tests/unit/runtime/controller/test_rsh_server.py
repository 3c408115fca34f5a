"""Calls of a launcher for ssh."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import cast

import pytest

from plans import node, plan_of
from shanty.runtime.controller.rsh_server import RshServer, _Call
from shanty.runtime.controller.worker_link import WorkerLink


def test_a_launcher_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shanty.runtime.controller.rsh_server._ROOM", 0.05)
    read, write = os.pipe()
    ours, theirs = socket.socketpair()
    call = _Call(cast(WorkerLink, None), ours, (write, os.dup(write)), "prted")
    for _ in range(4):
        call.write(1, bytes(1 << 16))
    call.end(0)
    assert len(os.read(read, 1 << 20)) == 1 << 16  # what the pipe holds
    assert b'"code": 0' in theirs.recv(100)
    os.close(read)
    theirs.close()


def daemon_of(names: tuple[str, ...], flavour: str = "openmpi5") -> str:
    """What the worker at 10.0.0.2 is asked to start, where it has these names."""
    plan = plan_of(2)
    mpi = {**plan.lead.mpi, "flavour": flavour}
    lead = node(0, mpi=mpi, names=("lab0", "ubuntu", "172.17.0.1"))
    other = node(1, mpi={**mpi, "prefix": "/q"}, names=names)
    plan = plan._replace(attempt=plan.attempt._replace(nodes=(lead, other)))
    server = RshServer(lambda _name: None, plan)
    worker = cast(WorkerLink, SimpleNamespace(name=other.name, node=other))
    return server._for_host('export X; /p/bin/prted --prtemca ess "env" --prtemca y 1', worker)


def test_a_daemon_on_a_host_that_shares_its_name_is_given_another_one() -> None:
    named = daemon_of(("lab1", "ubuntu"))
    assert "SLURMD_NODENAME=10.0.0.2" in named
    assert '; export X; /q/bin/prted --prtemca ess "slurm,env" --prtemca y 1' in named


def test_other_daemons_are_started_as_they_are() -> None:
    plain = 'export X; /q/bin/prted --prtemca ess "env" --prtemca y 1'
    assert daemon_of(("lab1", "172.17.0.1")) == plain  # docker's address is no name
    assert daemon_of(("lab1", "ubuntu"), "mpich") == plain


def test_a_call_whose_process_was_killed_is_noticed() -> None:
    server = RshServer(lambda _name: None, plan_of(2))
    ours, theirs = socket.socketpair()
    worker = cast(WorkerLink, SimpleNamespace(name="lab1"))
    outputs = os.pipe()
    server._calls[1] = _Call(worker, ours, outputs, "orted")
    assert server.dropped() is None
    theirs.close()
    assert server.dropped() is worker
    server.close()
