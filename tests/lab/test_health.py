"""The doctor's questions to hosts, and between hosts, on real ones: healthy ones have no findings.

What it says of broken ones is in test_faults.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import LabHosts, lab_in

from runs import wait_for
from shanty.launch import inventory
from shanty.launch.doctor import hosts, pairs
from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.transport import connect
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import ShantyError
from shanty.runtime.mpi.flavours import FLAVOURS

QUICK = 0.5  # seconds that one host's health may take it


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHosts]:
    """Three hosts with sshd and a Python only; others have no findings in test_faults.py."""
    with lab_in(tmp_path_factory.mktemp("bare"), 3, "--bare") as found:
        yield found


@pytest.fixture
def clients(lab: LabHosts) -> Iterator[list[RpcClient]]:
    home = lab.shanty.home
    named = inventory.recognised(inventory.resolve(lab.name, home), home)
    outcomes = connect.attempt(named, terminal=False, fresh=5)
    made = [each for each in outcomes if isinstance(each, RpcClient)]
    assert len(made) == 3, outcomes
    yield made
    for client in made:
        client.close(0.5)


def seen(clients: list[RpcClient]) -> list[Seen]:
    names = [client.host.name for client in clients]

    def look(client: RpcClient) -> Seen:
        survey = client.ask("survey").values
        before = time.time()
        health = client.ask("health", names=names).values
        error, doubt = hosts.clock(before, time.time(), health)
        return Seen(client.host, survey, health, client, error, doubt)

    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(look, clients))


def keys(lab: LabHosts) -> list[bytes]:
    return [(lab.home(host) / ".ssh/authorized_keys").read_bytes() for host in lab.hosts]


def test_healthy_hosts_have_no_findings(lab: LabHosts, clients: list[RpcClient]) -> None:
    """Not even notes; for any MPI; and what was tried leaves nothing behind."""
    before = keys(lab)
    found = seen(clients)
    for flavour in FLAVOURS:
        need = Need(dict.fromkeys(lab.hosts, 2), hosts=tuple(lab.hosts), flavour=flavour)
        assert [each for one in found for each in hosts.of_host(one, need)] == []
    assert list(pairs.of_hosts(found)) == []
    began = time.monotonic()
    assert list(pairs.between(found, began + 5)) == []
    assert time.monotonic() - began < 5
    assert keys(lab) == before
    for host in lab.hosts:
        assert "shanty-try" not in lab.exec(host, "ls", "/tmp").stdout


def test_a_host_answers_soon_and_wholly(lab: LabHosts, clients: list[RpcClient]) -> None:
    """Every question has an answer on a host that has nothing but a Python."""
    for one in seen(clients):
        assert one.health["took"] < QUICK
        assert one.health["resolves"][one.name] == [addresses(one)]
        assert one.health["resolves"]["lab1"]
        folders = one.survey["room"]["folders"]
        assert set(folders) == {"home", "shanty", "tmp", "shm"}
        for folder in folders.values():
            assert folder["error"] == ""
            assert folder["free"] > 0
        assert one.survey["room"]["available"] > 0
        assert one.survey["room"]["limits"]["NOFILE"][0] > 0
        assert abs(one.clock_error or 0.0) < 1


def addresses(one: Seen) -> str:
    """The host's address on the lab's network."""
    (found,) = [
        entry["address"]
        for entry in one.survey["addresses"]
        if entry["interface"] == "eth0" and ":" not in entry["address"]
    ]
    return str(found)


def test_a_key_on_trial_is_taken_out_though_the_lead_is_gone(
    lab: LabHosts, clients: list[RpcClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers let in what nobody will use any more: it goes all the same."""
    before = keys(lab)
    found = seen(clients)
    lead = clients[0]
    real = RpcClient.ask

    def cut_then_ask(self: RpcClient, verb: str, **args: object) -> object:
        if verb == "try-key":
            wait_for(lambda: keys(lab)[1:] != before[1:], 5, "no key was let in")
            lab.do("freeze", lead.host.name)
            args["patience"] = 1.0
        return real(self, verb, **args)  # type: ignore[arg-type]

    monkeypatch.setattr(RpcClient, "ask", cut_then_ask)
    try:
        with pytest.raises(ShantyError, match="lab1"):
            list(pairs.between(found, time.monotonic() + 5))
    finally:
        lab.do("thaw", lead.host.name)
    assert keys(lab) == before
