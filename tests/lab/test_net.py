"""`shanty net` and the choice of a run's network, over the hosts of a lab.

Each host has eth0, held to 200 Mbit/s, and tb0, which is fast. ssh goes over eth0.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import LabHosts, lab_in

from shanty.launch.network.selection import decide
from shanty.launch.network.survey import chosen, survey
from shanty.launch.network.topology import Choice

NFT = "nft add table inet trap; nft 'add chain inet trap in { type filter hook input priority 0; }'"
MBIT = 125e3


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHosts]:
    """Three hosts with two networks."""
    folder = tmp_path_factory.mktemp("net")
    with lab_in(folder, 3, "--nic", "tb0", "--rate", "eth0=200mbit") as found:
        yield found


@contextmanager
def trap(lab: LabHosts, host: str, do: str, undo: str) -> Iterator[None]:
    """What `do` does on a host's console, up to the end of the block."""
    try:
        done = lab.exec(host, "sh", "-ec", do)
        assert done.returncode == 0, done.stderr
        yield
    finally:
        done = lab.exec(host, "sh", "-c", undo)
        assert done.returncode == 0, done.stderr


@contextmanager
def firewall(lab: LabHosts, host: str, *rules: str) -> Iterator[None]:
    """Rules for what comes in to a host."""
    added = "; ".join(f"nft 'add rule inet trap in {rule}'" for rule in rules)
    with trap(lab, host, f"{NFT}; {added}", "nft delete table inet trap"):
        yield


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


def test_the_fast_network_among_all_kinds_of_traps(two: LabHosts, tmp_path: Path) -> None:
    dead = (  # an ordinary user may not make a tun; a cable whose other end is down is as dead
        "ip tuntap add dev tun0 mode tun || ip link add tun0 type veth peer name tun1; "
        "ip addr add 10.99.0.{n}/24 dev tun0; ip link set tun0 up"
    )
    docker = (
        "ip link add docker0 type bridge; ip link add port0 type veth peer name port1; "
        "ip link set port0 master docker0 up; ip link set port1 up; "
        "ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up"
    )
    undo = "ip link del tun0; ip link del port0; ip link del docker0"
    picture = tmp_path / "a.svg"
    with ExitStack() as stack:
        for number, host in enumerate(two.hosts, 1):
            do = f"{dead.format(n=number)}; {docker}"
            stack.enter_context(trap(two, host, do, undo))
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


def test_two_names_of_one_machine(two: LabHosts) -> None:
    known = two.config.read_text()
    before, entry, _ = re.split(r"(?m)^(?=Host lab[23] )", known)
    try:
        two.config.write_text(before + entry + entry.replace("Host lab2 ", "Host lab3 "))
        done = two.shanty("net", "lab1,lab2,lab3")
    finally:
        two.config.write_text(known)
    assert done.returncode == 2, done.stderr
    assert "lab2 and lab3 are the same machine" in done.stderr


def test_only_the_ports_that_are_open(two: LabHosts) -> None:
    rules = (
        "ct state established,related accept", "iif lo accept", "tcp dport 22 accept",
        "tcp dport 20000-20099 accept", "drop",
    )  # fmt: skip
    with firewall(two, "lab2", *rules):
        assert interfaces(net(two, "--ports", "20000-20099")) == [{"tb0"}]
        assert serious(net(two, "--ports", "30000-30099", code=69)) == [("port-blocked", "lab2")]


def test_what_is_known_is_not_measured_until_an_interface_comes(two: LabHosts) -> None:
    assert net(two, "--fresh")["age"] == 0
    assert net(two)["age"] > 0
    do = "ip link add more0 type veth peer name more1; ip addr add 10.98.0.1/24 dev more0"
    with trap(
        two, "lab2", f"{do}; ip link set more0 up; ip link set more1 up", "ip link del more0"
    ):
        assert net(two)["age"] == 0
    assert net(two)["age"] > 0


def decided(lab: LabHosts) -> Choice:
    """What a run decides."""
    home = lab.shanty.home
    hosts = survey(chosen(lab.name, None, home), home, lambda _text: None, terminal=False)
    try:
        return decide(hosts, home)
    finally:
        for host in hosts:
            host.client.close(0.5)


def forget(lab: LabHosts) -> None:
    """What is known of the networks."""
    for path in (lab.shanty.home / "net").glob("*"):
        path.unlink()


def test_a_run_s_decision(two: LabHosts) -> None:
    forget(two)
    cold = decided(two)
    assert cold.age is None
    assert cold.seconds < 10
    assert cold.findings == ()
    assert [one.name for one in cold.route.rails[0].interfaces.values()] == ["tb0"] * 3
    warm = decided(two)
    assert warm.age is not None
    assert warm.route == cold.route
    # the address is still there, so only a look shows that it leads nowhere
    with firewall(two, "lab2", "iifname tb0 drop"):
        blocked = decided(two)
    assert blocked.age is None
    assert [rail.networks for rail in blocked.route.rails] == [(network(two, "eth0"),)]
    assert blocked.seconds < 10


def test_a_network_that_is_dead_on_one_host(two: LabHosts) -> None:
    with firewall(two, "lab2", "iifname tb0 drop"):
        found = net(two, "--fresh")
    assert interfaces(found) == [{"eth0"}]
    notes = [(one["code"], one["host"]) for one in found["findings"] if one["level"] == "note"]
    assert notes == [("net-dead", "lab2")]


def test_one_direction_that_is_blocked(two: LabHosts) -> None:
    syn = "tcp flags & (syn | ack) == syn drop"
    rules = [f"ip saddr {address(two, 'lab2', nic)} {syn}" for nic in ("eth0", "tb0")]
    with firewall(two, "lab3", *rules):
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


def test_large_packets_that_vanish(two: LabHosts) -> None:
    rules = [
        f"ip saddr {address(two, 'lab2', nic)} meta length > 1400 drop" for nic in ("eth0", "tb0")
    ]
    with firewall(two, "lab3", *rules):
        found = net(two, "--fresh", code=69)
    assert serious(found) == [("mtu-blackhole", "lab3")]
    assert set(verdicts(found).values()) == {"black-hole"}
    with firewall(two, "lab3", rules[0]):
        found = net(two, "--fresh")
    assert interfaces(found) == [{"tb0"}]
    assert serious(found) == []


@pytest.mark.parametrize("last", ["drop", "reject with icmpx type admin-prohibited"])
def test_a_firewall_that_lets_only_ssh_in(two: LabHosts, last: str) -> None:
    rules = ("ct state established,related accept", "iif lo accept", "tcp dport 22 accept", last)
    with firewall(two, "lab2", *rules):
        found = net(two, "--fresh", code=69)
    assert serious(found) == [("port-blocked", "lab2")]


def test_a_bad_cable(two: LabHosts) -> None:
    bad = "tc qdisc replace dev {} root tbf rate 5mbit burst 32kb latency 50ms"
    good = "tc qdisc replace dev eth0 root tbf rate 200mbit burst 128kb latency 50ms"
    with (
        trap(two, "lab2", bad.format("eth0"), good),
        trap(two, "lab2", "ip link set tb0 down", "ip link set tb0 up"),
    ):
        found = net(two, "--fresh")
        known = decided(two)
        forget(two)
        decision = decided(two)
    assert serious(found) == [("net-slow", "lab2")]
    assert known.age is not None
    assert "net-slow" not in [one.code for one in known.findings]  # it was said before
    # a run tries only whether it works, and sees that it takes long
    assert ("net-slow", "lab2") in [(one.code, one.host) for one in decision.findings]


def test_a_wire_that_all_pairs_together_are_too_much_for(tmp_path: Path) -> None:
    """12 times 64 KiB there and back take 3 s and more, whatever TCP makes of it."""
    with lab_in(tmp_path, 4, "--rate", "eth0=1mbit") as lab:
        found = net(lab)
        forget(lab)
        decision = decided(lab)
    assert {pair["contact"] for pair in found["networks"][0]["pairs"]} == {"ok"}
    assert {code for code, _host in serious(found)} <= {"net-slow"}
    assert interfaces(found) == [{"eth0"}]
    assert decision.route.rails


def test_hosts_that_have_only_ipv6_in_common(two: LabHosts) -> None:
    with ExitStack() as stack:
        for host in two.hosts:
            own = address(two, host, "eth0")
            start, _, number = own.rpartition(".")
            do = (
                f"ip addr del {own}/24 dev eth0; ip addr add {own}/32 dev eth0; "
                f"ip route add {start}.254 dev eth0 src {own}; "
                f"ip -6 addr add fd77::{number}/64 dev eth0 nodad; ip link set tb0 down"
            )
            undo = (
                f"ip -6 addr del fd77::{number}/64 dev eth0; ip route del {start}.254 dev eth0; "
                f"ip addr del {own}/32 dev eth0; ip addr add {own}/24 dev eth0; ip link set tb0 up"
            )
            stack.enter_context(trap(two, host, do, undo))
        found = net(two)
    assert verdicts(found)["fd77::/64"] == "chosen"
    assert [end["address"] for end in found["route"][0].values()] == [
        "fd77::1", "fd77::2", "fd77::3"
    ]  # fmt: skip
