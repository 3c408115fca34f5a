"""`shanty net` and the choice of a run's network, over the hosts of a lab.

Each host has eth0, held to 200 Mbit/s, and tb0, which is fast. ssh goes over eth0.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import planted
import pytest
from conftest import LabHosts, lab_in
from faults_world import World

from shanty.launch.network.selection import decide
from shanty.launch.network.survey import chosen, survey
from shanty.launch.network.topology import Choice

MBIT = 125e3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three hosts with two networks."""
    folder = tmp_path_factory.mktemp("net")
    with lab_in(folder, 3, "--nic", "tb0", "--rate", "eth0=200mbit") as lab:
        found = World(lab)
        yield found
        found.close()


@pytest.fixture
def two(world: World) -> LabHosts:
    return world.lab


def address(lab: LabHosts, host: str, nic: str) -> str:
    places = {entry["name"]: entry["addresses"] for entry in lab.show()["hosts"]}
    found: str = places[host][nic]
    return found


def network(lab: LabHosts, nic: str) -> str:
    return address(lab, lab.hosts[0], nic).rpartition(".")[0] + ".0/24"


def net(lab: LabHosts, *words: str | Path, code: int = 0) -> dict[str, Any]:
    """What `shanty net --json` finds."""
    done = lab.shanty("net", lab.name, "--json", *words)
    assert done.returncode == code, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["verdict"] for one in found["networks"]}


def serious(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The findings above a note, as code and host."""
    return [(one["code"], one["host"]) for one in found["findings"] if one["level"] != "note"]


def interfaces(found: dict[str, Any]) -> list[set[str]]:
    """The interfaces that the run takes, a set for each rail."""
    return [{end["interface"] for end in rail.values()} for rail in found["route"]]


def test_the_fast_network_among_all_kinds_of_traps(
    world: World, two: LabHosts, tmp_path: Path
) -> None:
    dead = (  # an ordinary user may not make a tun; a cable whose other end is down is as dead
        "ip tuntap add dev tun0 mode tun || ip link add tun0 type veth peer name tun1; "
        "ip addr add 10.99.0.{n}/24 dev tun0; ip link set tun0 up"
    )
    undo = f"ip link del tun0; {planted.NO_DOCKER}"
    picture = tmp_path / "a.svg"
    with ExitStack() as stack:
        for number, host in enumerate(two.hosts, 1):
            do = f"{dead.format(n=number)}; {planted.DOCKER}"
            stack.enter_context(world.console_pair(host, do, undo))
        found = net(two, "--svg", picture)
        shown = two.shanty("net", two.name)
    assert found["seconds"] < 10
    assert interfaces(found) == [{"tb0"}]
    assert serious(found) == []
    assert verdicts(found) == {
        network(two, "eth0"): "slow",
        network(two, "tb0"): "chosen",
        "10.99.0.0/24": "dead",
        "172.17.0.0/16": "isolated",
    }
    assert [host["name"] for host in found["hosts"]] == two.hosts
    ends = {end["interface"]: end for end in found["hosts"][0]["interfaces"]}
    assert ends["tun0"]["carries"] is False
    assert ends["eth0"]["address"] == found["hosts"][0]["address"]
    slow, fast = found["networks"][:2]
    assert slow["ssh"]
    assert len(slow["pairs"]) == len(fast["pairs"]) == 6
    for pair in slow["pairs"]:
        assert pair["contact"] == "ok"
        assert 100 * MBIT < pair["rate"] < 260 * MBIT
        assert 0 < pair["latency"] < 1
    assert min(pair["rate"] for pair in fast["pairs"]) > 260 * MBIT
    words = [element.text for element in ET.parse(picture).getroot().iter() if element.text]
    assert f"{network(two, 'tb0')} · chosen" in words
    # the second time it is only shown
    assert shown.returncode == 0
    assert "ago; --fresh measures again" in shown.stderr
    assert f"a run takes {network(two, 'tb0')}: the fastest" in shown.stdout
    assert "TO lab2" in shown.stdout
    assert "172.17.0.0/16  isolated: the same address on all hosts" in shown.stdout


def test_the_hosts_of_the_workspace(two: LabHosts, tmp_path: Path) -> None:
    (tmp_path / "shanty.toml").write_text(f'[run]\non = "{two.name}"\n')
    process = two.shanty.start("net", "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert [host["name"] for host in json.loads(out)["hosts"]] == two.hosts


def test_only_the_ports_that_are_open(world: World, two: LabHosts) -> None:
    rules = (
        "ct state established,related accept", "iif lo accept", "tcp dport 22 accept",
        "tcp dport 20000-20099 accept", "drop",
    )  # fmt: skip
    with world.firewall("lab2", *rules):
        assert interfaces(net(two, "--ports", "20000-20099")) == [{"tb0"}]
        assert serious(net(two, "--ports", "30000-30099", code=69)) == [("port-blocked", "lab2")]


def decided(lab: LabHosts) -> Choice:
    """What a run decides."""
    home = lab.shanty.home
    hosts = survey(chosen(lab.name, None, home), home, lambda _text: None, terminal=False)
    try:
        return decide(hosts, home)
    finally:
        for host in hosts:
            host.client.close(0.5)


def test_a_run_s_decision(world: World, two: LabHosts) -> None:
    for path in (two.shanty.home / "net").glob("*"):
        path.unlink()
    cold = decided(two)
    assert cold.age is None
    assert cold.seconds < 10
    assert cold.findings == ()
    assert [one.name for one in cold.route.rails[0].interfaces.values()] == ["tb0"] * 3
    warm = decided(two)
    assert warm.age is not None
    assert warm.route == cold.route
    # the address is still there, so only a look shows that it leads nowhere
    with world.firewall("lab2", "iifname tb0 drop"):
        blocked = decided(two)
        found = net(two, "--fresh")
    assert blocked.age is None
    assert [rail.networks for rail in blocked.route.rails] == [(network(two, "eth0"),)]
    assert blocked.seconds < 10
    assert interfaces(found) == [{"eth0"}]
    notes = [(one["code"], one["host"]) for one in found["findings"] if one["level"] == "note"]
    assert notes == [("net-dead", "lab2")]


def test_one_direction_that_is_blocked(world: World, two: LabHosts) -> None:
    syn = "tcp flags & (syn | ack) == syn drop"
    rules = [f"ip saddr {address(two, 'lab2', nic)} {syn}" for nic in ("eth0", "tb0")]
    with world.firewall("lab3", *rules):
        found = net(two, code=69)
        told = two.shanty("net", two.name)
    assert serious(found) == [("port-blocked", "lab3")]
    assert set(verdicts(found).values()) == {"half-open"}
    assert found["route"] == []
    (error,) = (one for one in found["findings"] if one["level"] == "error")
    assert "lab2 → lab3" in error["evidence"]
    assert "lab3 → lab2 works" in error["evidence"]
    assert told.returncode == 69
    assert "a run takes none" in told.stdout
    assert "error: lab3: connections to lab3" in told.stdout
    # nothing of it is kept: it is mended in the next moment
    assert interfaces(net(two)) == [{"tb0"}]


def test_a_wire_that_all_pairs_together_are_too_much_for(tmp_path: Path) -> None:
    """12 times 64 KiB there and back take 3 s and more, whatever TCP makes of it."""
    with lab_in(tmp_path, 4, "--rate", "eth0=1mbit") as lab:
        found = net(lab)
    assert {pair["contact"] for pair in found["networks"][0]["pairs"]} == {"ok"}
    assert {code for code, _host in serious(found)} <= {"net-slow"}
    assert interfaces(found) == [{"eth0"}]
