"""Which networks hosts seem to have in common, and what makes that another question."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.network.topology import BY_SSH, Network, SurveyedHost, fingerprint, networks


def host(name: str, *ends: str, address: str | None = None, **links: Any) -> SurveyedHost:
    """`host("a", "eth0 10.0.0.1/24", "tun0 10.9.0.1/24 down", speed={"eth0": 1000})`."""
    entries = []
    for end in ends:
        interface, place, *rest = end.split()
        number, _, prefix = place.partition("/")
        entries.append(
            {
                "interface": interface,
                "address": number,
                "prefix": int(prefix),
                "up": "down" not in rest,
                "loopback": interface == "lo",
            }
        )
    kinds, speeds = links.get("kind", {}), links.get("speed", {})
    survey = {
        "addresses": entries,
        "links": {
            entry["interface"]: {
                "up": True,
                "speed": speeds.get(entry["interface"], 0),
                "mtu": 1500,
                "kind": kinds.get(entry["interface"], ""),
            }
            for entry in entries
        },
        "time": 1.0,
        "free": {"home": 7},
    }
    nobody: Any = None
    own = entries[0]["address"] if address is None else address
    return SurveyedHost(name, nobody, survey, own)


def names(found: list[Network]) -> list[str]:
    return [network.name for network in found]


def test_interfaces_meet_by_network_whatever_their_names_are() -> None:
    found = networks(
        [
            host("a", "eth0 10.0.0.1/24", "ib0 10.1.0.1/16", "lo 127.0.0.1/8"),
            host("b", "ens3 10.0.0.2/24", "eth7 10.1.200.2/16", "lo 127.0.0.1/8"),
        ]
    )
    assert names(found) == ["10.0.0.0/24", "10.1.0.0/16"]
    assert [network.ssh for network in found] == [True, False]
    assert {name: end.name for name, end in found[1].ends.items()} == {"a": "ib0", "b": "eth7"}
    assert found[0].rail.networks == ("10.0.0.0/24",)


def test_the_network_of_ssh_comes_first_and_ipv4_before_ipv6() -> None:
    found = networks(
        [
            host("a", "tb0 10.1.0.1/24", "eth0 fd00::1/64", "eth0 10.0.0.1/24", address="10.0.0.1"),
            host("b", "tb0 10.1.0.2/24", "eth0 fd00::2/64", "eth0 10.0.0.2/24", address="10.0.0.2"),
        ]
    )
    assert names(found) == ["10.0.0.0/24", "10.1.0.0/24", "fd00::/64"]
    assert [network.version for network in found] == [4, 4, 6]
    assert found[0].wires == found[2].wires


def test_what_leads_nowhere_is_left_out() -> None:
    found = networks(
        [
            host("a", "eth0 10.0.0.1/24", "eth0 fe80::1%eth0/64", "eth1 169.254.3.4/16"),
            host("b", "eth0 10.0.0.2/24", "eth0 fe80::2%eth0/64", "eth2 192.168.1.7/24"),
        ]
    )
    assert names(found) == ["10.0.0.0/24"]


def test_one_address_on_several_hosts() -> None:
    found = networks(
        [
            host("a", "eth0 10.0.0.1/24", "docker0 172.17.0.1/16"),
            host("b", "eth0 10.0.0.2/24", "docker0 172.17.0.1/16"),
            host("c", "eth0 10.0.0.3/24", "docker0 172.17.0.9/16"),
        ]
    )
    assert found[1].doubled == {"a", "b"}
    assert found[1].tried == ["c"]


def test_an_end_that_carries_nothing() -> None:
    found = networks(
        [
            host("a", "eth0 10.0.0.1/24", "tb0 10.1.0.1/24"),
            host("b", "eth0 10.0.0.2/24", "tb0 10.1.0.2/24 down"),
        ]
    )
    assert found[1].down == {"b"}


def test_a_dead_end_of_one_host_alone_is_told_but_no_idle_bridge() -> None:
    found = networks(
        [
            host("a", "eth0 10.0.0.1/24", "tun0 10.8.0.1/24 down"),
            host("b", "eth0 10.0.0.2/24", "docker0 172.17.0.1/16 down", kind={"docker0": "bridge"}),
        ]
    )
    assert names(found) == ["10.0.0.0/24", "10.8.0.0/24"]
    assert found[1].down == {"a"}


def test_of_two_ends_in_one_network_the_one_of_ssh_counts() -> None:
    found = networks(
        [
            host("a", "eth0 10.0.0.1/24 down", "eth1 10.0.0.7/24", address=""),
            host("b", "eth0 10.0.0.2/24", "eth1 10.0.0.8/24", address="10.0.0.8"),
        ]
    )
    assert {name: end.name for name, end in found[0].ends.items()} == {"a": "eth1", "b": "eth1"}


def test_hosts_in_networks_of_their_own_may_be_routed() -> None:
    found = networks(
        [
            host("a", "eth0 10.0.1.5/24", "ts0 100.64.0.1/32"),
            host("b", "ens3 10.0.2.5/24", "ts0 100.64.0.2/32"),
        ]
    )
    assert names(found) == [BY_SSH, "ts0"]
    assert found[0].rail.networks == ("10.0.1.0/24", "10.0.2.0/24")
    assert found[1].rail.networks == ("100.64.0.1/32", "100.64.0.2/32")


def test_no_route_by_addresses_that_no_host_has() -> None:
    found = networks(
        [host("a", "eth0 10.0.1.5/24", address="1.2.3.4"), host("b", "ens3 10.0.2.5/24")]
    )
    assert found == []


def test_speeds_are_bytes_a_second() -> None:
    found = networks(
        [host("a", "e 10.0.0.1/24", speed={"e": 1000}), host("b", "e 10.0.0.2/24", speed={})]
    )
    assert found[0].speeds == {"a": 125e6}


def test_a_survey_of_an_older_host_has_no_links() -> None:
    hosts = [host("a", "eth0 10.0.0.1/24"), host("b", "eth0 10.0.0.2/24")]
    for each in hosts:
        del each.survey["links"]
    assert names(networks(hosts)) == ["10.0.0.0/24"]
    assert fingerprint(hosts)


# --------------------------------------------------------------------------------- fingerprint

_ENDS = st.lists(
    st.builds(
        "{} 10.{}.0.{}/{}{}".format,
        st.sampled_from(["eth0", "tb0", "ib0"]),
        st.integers(0, 3),
        st.integers(1, 254),
        st.sampled_from([16, 24]),
        st.sampled_from(["", " down"]),
    ),
    min_size=1,
    max_size=4,
    unique=True,
)
_HOSTS = st.lists(_ENDS, min_size=1, max_size=4).map(
    lambda ends: [host(f"h{number}", *each) for number, each in enumerate(ends)]
)


@given(_HOSTS, st.randoms())
def test_the_order_makes_no_difference(hosts: list[SurveyedHost], chance: Any) -> None:
    before = fingerprint(hosts)
    mixed = copy.deepcopy(hosts)
    chance.shuffle(mixed)
    for each in mixed:
        chance.shuffle(each.survey["addresses"])
    assert fingerprint(mixed) == before


@given(_HOSTS)
def test_what_changes_all_the_time_makes_no_difference(hosts: list[SurveyedHost]) -> None:
    before = fingerprint(hosts)
    for each in hosts:
        each.survey.update(time=2.0, free={"home": 1}, path="/bin")
        each.survey["links"]["veth1234"] = {"up": True, "speed": 1, "mtu": 1, "kind": ""}
        each.survey["addresses"].append(
            {"interface": "e", "address": "fe80::1%e", "prefix": 64, "up": True, "loopback": False}
        )
    assert fingerprint(hosts) == before


@given(_HOSTS, st.data())
def test_what_may_change_the_choice_makes_another_one(hosts: list[SurveyedHost], data: Any) -> None:
    before = fingerprint(hosts)
    one = data.draw(st.sampled_from(hosts)).survey
    entry = data.draw(st.sampled_from(one["addresses"]))
    kind = data.draw(st.sampled_from(["address", "prefix", "up", "interface", "speed", "new"]))
    if kind == "address":
        entry["address"] = "192.168.9.9"
    elif kind == "prefix":
        entry["prefix"] = 20
    elif kind == "up":
        entry["up"] = not entry["up"]
    elif kind == "interface":
        entry["interface"] = "other0"
    elif kind == "speed":
        one["links"][entry["interface"]]["speed"] += 10
    else:
        one["addresses"].append({**entry, "address": "192.168.9.9"})
    assert fingerprint(hosts) != before


@given(_HOSTS)
def test_every_network_is_consistent(hosts: list[SurveyedHost]) -> None:
    own = {each.name for each in hosts}
    found = networks(hosts)
    assert len(set(names(found))) == len(found)
    for network in found:
        assert set(network.ends) <= own
        assert network.down <= set(network.ends)
        addresses = [network.ends[name].address for name in network.tried]
        assert len(set(addresses)) == len(addresses)
        assert len(network.ends) > 1 or network.down
