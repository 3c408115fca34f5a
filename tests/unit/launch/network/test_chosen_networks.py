"""What is chosen by what was measured, what is thought of the rest, and who is to blame."""

from __future__ import annotations

import json
import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.finding import CODES, Level
from shanty.launch.network import selection
from shanty.launch.network.diagnosis import CLEARLY
from shanty.launch.network.measure import few, pairs, ring, some_pairs, tournament
from shanty.launch.network.report import draw, rate_text, time_text
from shanty.launch.network.selection import choose
from shanty.launch.network.topology import (
    Choice,
    Contact,
    Interface,
    Measured,
    Network,
    Pace,
    Pair,
    Route,
)
from shanty.launch.plain_json import decode, encode

HOSTS = ("a", "b", "c")
MBIT = 125e3
ALL = [(HOSTS[i], HOSTS[j]) for i, j in pairs(3)]
RING = [(HOSTS[i], HOSTS[j]) for games in ring(3) for i, j in games]


def network(number: int, **more: Any) -> Network:
    """10.N.0.0/24, by the interface ethN of every host."""
    ends = {
        name: Interface(f"eth{number}", f"10.{number}.0.{index}", 24)
        for index, name in enumerate(more.pop("hosts", HOSTS), 1)
    }
    return Network(f"10.{number}.0.0/24", ends, **{"ssh": number == 0, **more})


def contacts(failed: Mapping[Pair, str] | None = None) -> dict[Pair, Contact]:
    return {pair: Contact((failed or {}).get(pair, "ok")) for pair in ALL}


def paces(rate: float, slow: Mapping[Pair, float] | None = None) -> dict[Pair, Pace]:
    return {pair: Pace((slow or {}).get(pair, rate), 50e-6) for pair in RING}


def measured(*networks: Network, **more: Any) -> Measured:
    """Networks that join all, unless `failed` says of one, by its number, what fails there."""
    failed = more.pop("failed", {})
    found = {
        one.name: contacts(failed.get(number))
        for number, one in enumerate(networks)
        if set(one.tried) == set(HOSTS)
    }
    rates = {networks[number].name: value for number, value in more.pop("paces", {}).items()}
    return Measured(HOSTS, networks, found, rates, **more)


def chosen(found: Measured, surveys: Mapping[str, Any] | None = None) -> Choice:
    choice = choose(found, surveys or {})
    assert all(finding.code in CODES for finding in choice.findings)
    assert set(choice.verdicts) == {one.name for one in found.networks}
    return choice


def names_of(route: Route) -> tuple[str, ...]:
    """The networks of all rails of a route."""
    return tuple(network for rail in route.rails for network in rail.networks)


def said(choice: Choice) -> list[tuple[str, str, str]]:
    return [(one.level.value, one.code, one.host) for one in choice.findings]


# ------------------------------------------------------------------------------------ the route


def test_the_only_one_is_taken_without_a_figure() -> None:
    choice = chosen(measured(network(0)))
    assert names_of(choice.route) == ("10.0.0.0/24",)
    assert choice.findings == ()


@pytest.mark.parametrize(("factor", "expected"), [(1.2, 0), (1.3, 1), (30, 1), (0.1, 0)])
def test_ssh_s_network_is_left_only_for_one_that_is_clearly_faster(
    factor: float, expected: int
) -> None:
    both = (network(0), network(1))
    choice = chosen(measured(*both, paces={0: paces(400 * MBIT), 1: paces(400 * MBIT * factor)}))
    assert names_of(choice.route) == (both[expected].name,)


def test_the_slowest_pair_counts() -> None:
    found = measured(
        network(0),
        network(1),
        paces={0: paces(1000 * MBIT), 1: paces(9000 * MBIT, {RING[2]: 500 * MBIT})},
    )
    assert names_of(chosen(found).route) == ("10.0.0.0/24",)


def test_beyond_what_can_be_counted_the_kernel_s_word_counts() -> None:
    speeds = dict.fromkeys(HOSTS, 12500000000.0)
    both = (network(0, speeds={**speeds, "a": 3.1e9}), network(1, speeds=speeds))
    found = measured(*both, paces={0: paces(3.3e9), 1: paces(3.2e9)})
    assert names_of(chosen(found).route) == ("10.1.0.0/24",)


@pytest.mark.parametrize(
    ("together", "rails"),
    [
        ((900.0, 900.0), 2),
        ((620.0, 650.0), 1),  # not much more than one alone
        ((1500.0, 300.0), 1),  # an MPI deals evenly, so the slower one holds it back
    ],
)
def test_several_rails_only_where_they_carry_more(
    together: tuple[float, float], rails: int
) -> None:
    both = (network(0), network(1))
    rates = tuple(rate * MBIT for rate in together)
    found = measured(
        *both,
        paces={0: paces(1000 * MBIT), 1: paces(1010 * MBIT)},
        together={tuple(one.name for one in both): dict.fromkeys(RING, rates)},
    )
    choice = chosen(found)
    assert len(choice.route.rails) == rails
    if rails == 2:
        assert names_of(choice.route) == ("10.1.0.0/24", "10.0.0.0/24")  # the best one first
        assert {one.kind for one in choice.verdicts.values()} == {"chosen"}


def ipv6(ssh: bool = False) -> Network:
    ends = {name: Interface("eth0", f"fd00::{index}", 64) for index, name in enumerate(HOSTS, 1)}
    return Network("fd00::/64", ends, ssh=ssh)


def test_ipv6_only_where_nothing_else_serves() -> None:
    only = chosen(measured(ipv6(ssh=True)))
    assert only.route.rails[0].interfaces["a"] == Interface("eth0", "fd00::1", 64)
    both = chosen(measured(ipv6(ssh=True), network(0, ssh=False)))
    assert names_of(both.route) == ("10.0.0.0/24",)
    broken = chosen(measured(network(0), ipv6(), failed={0: {("a", "b"): "refused"}}))
    assert names_of(broken.route) == ("fd00::/64",)


# ------------------------------------------------------------------------- what is wrong, and where

NOBODY = dict.fromkeys(ALL, "no-answer")
TO_C = {("a", "c"): "no-answer", ("b", "c"): "no-answer"}
FROM_C = {("c", "a"): "no-answer", ("c", "b"): "no-answer"}


@pytest.mark.parametrize(
    ("failed", "expected", "verdict"),
    [
        (TO_C, [("error", "port-blocked", "c")], "half-open"),
        (FROM_C, [("error", "port-blocked", "c")], "half-open"),
        ({**TO_C, **FROM_C}, [("error", "port-blocked", "c")], "blocked"),
        ({("b", "c"): "refused"}, [("error", "port-blocked", "c")], "half-open"),
        (
            {**TO_C, ("a", "b"): "unreachable", ("c", "b"): "unreachable"},
            [("error", "port-blocked", "b"), ("error", "port-blocked", "c")],
            "blocked",
        ),
        (NOBODY, [("error", "port-blocked", "")], "blocked"),
        (
            {("a", "c"): "large-lost", ("c", "a"): "large-lost-back"},
            [("error", "mtu-blackhole", "c")],
            "black-hole",
        ),
        (
            {("a", "c"): "large-lost-back", ("b", "c"): "large-lost-back"},
            [("error", "mtu-blackhole", "c")],
            "black-hole",
        ),
    ],
)
def test_where_the_only_network_is_broken(
    failed: dict[Pair, str], expected: list[tuple[str, str, str]], verdict: str
) -> None:
    choice = chosen(measured(network(0), failed={0: failed}))
    assert sorted(said(choice)) == expected
    assert choice.verdicts["10.0.0.0/24"].kind == verdict
    assert choice.route.rails == ()
    assert all(one.fix and one.evidence for one in choice.findings)


def test_the_direction_is_named() -> None:
    (to,) = chosen(measured(network(0), failed={0: TO_C})).findings
    (back,) = chosen(measured(network(0), failed={0: FROM_C})).findings
    (both,) = chosen(measured(network(0), failed={0: {**TO_C, **FROM_C}})).findings
    (large,) = chosen(measured(network(0), failed={0: {("a", "c"): "large-lost-back"}})).findings
    assert "to c" in to.what
    assert "c → a, c → b works" in to.evidence
    assert "from c" in back.what
    assert "to and from c" in both.what
    assert "to a" in large.what
    assert "c → a" in large.evidence


@pytest.mark.parametrize(
    ("other", "expected", "verdict"),
    [
        ({"failed": {1: NOBODY}}, [("note", "net-dead", "")], "dead"),
        ({"failed": {1: TO_C}}, [("note", "port-blocked", "c")], "half-open"),
        ({"failed": {1: {**TO_C, **FROM_C}}}, [("note", "net-dead", "c")], "blocked"),
        ({"failed": {1: {("a", "b"): "large-lost"}}}, [("note", "mtu-blackhole", "b")],
         "black-hole"),
        ({"down": {"b"}}, [("note", "net-dead", "b")], "dead"),
        ({"down": set(HOSTS)}, [("note", "net-dead", "")], "dead"),
        ({"doubled": {"a", "b"}}, [("note", "net-isolated", "")], "isolated"),
        ({"hosts": ("a", "b")}, [], "partial"),
    ],
)  # fmt: skip
def test_what_is_wrong_beside_a_network_that_serves_is_a_note(
    other: dict[str, Any], expected: list[tuple[str, str, str]], verdict: str
) -> None:
    failed = other.pop("failed", {})
    other = {key: frozenset(value) if key != "hosts" else value for key, value in other.items()}
    choice = chosen(measured(network(0), network(1, **other), failed=failed))
    assert said(choice) == expected
    assert choice.verdicts["10.1.0.0/24"].kind == verdict
    assert names_of(choice.route) == ("10.0.0.0/24",)


def test_each_network_broken_elsewhere_is_no_network() -> None:
    found = measured(
        network(0), network(1), failed={0: {**TO_C, **FROM_C}, 1: {("a", "b"): "no-answer"}}
    )
    errors = [one for one in chosen(found).findings if one.level is Level.ERROR]
    assert [(one.code, one.host) for one in errors] == [("net-none", "")]
    assert "10.0.0.0/24" in errors[0].evidence
    assert "10.1.0.0/24" in errors[0].evidence


def test_one_firewall_on_all_networks_is_one_error() -> None:
    choice = chosen(measured(network(0), network(1), failed={0: TO_C, 1: TO_C}))
    assert said(choice) == [("error", "port-blocked", "c"), ("note", "port-blocked", "c")]


def test_nothing_in_common() -> None:
    assert said(chosen(measured())) == [("error", "net-none", "")]
    isolated = network(1, doubled=frozenset(HOSTS))
    assert said(chosen(measured(isolated))) == [
        ("note", "net-isolated", ""),
        ("error", "net-none", ""),
    ]


def test_unlike_mtus_are_evidence_and_have_a_command() -> None:
    surveys = {name: {"links": {"eth0": {"mtu": 9000 if name == "b" else 1500}}} for name in HOSTS}
    found = measured(network(0), failed={0: {("b", "a"): "large-lost", ("b", "c"): "large-lost"}})
    (finding,) = chosen(found, surveys).findings
    assert finding.host == "b"
    assert "b 9000" in finding.evidence
    assert finding.command == "sudo ip link set dev eth0 mtu 1500"


def test_a_slow_cable_is_told_by_its_host() -> None:
    slow = {("b", "a"): 5 * MBIT, ("b", "c"): 4 * MBIT}
    rates = {pair: Pace(slow.get(pair, 900 * MBIT), 1e-4) for pair in ALL}
    choice = chosen(measured(network(0), paces={0: rates}))
    assert said(choice) == [("warning", "net-slow", "b")]
    assert "4 Mbit/s from b to c" in choice.findings[0].evidence
    rates = {pair: Pace(slow.get(pair, 90 * MBIT), 1e-4) for pair in ALL}
    assert said(chosen(measured(network(0), paces={0: rates}))) == [("warning", "net-slow", "b")]


def test_a_slow_network_is_told_and_only_the_one_that_is_taken() -> None:
    choice = chosen(measured(network(0), paces={0: paces(90 * MBIT)}))
    assert said(choice) == [("warning", "net-slow", "")]
    both = measured(network(0), network(1), paces={0: paces(90 * MBIT), 1: paces(900 * MBIT)})
    assert said(chosen(both)) == []
    assert chosen(both).verdicts["10.0.0.0/24"].kind == "slow"


def test_a_link_that_fell_back_is_told_without_a_measurement() -> None:
    speeds = {"a": 1000 * MBIT, "b": 100 * MBIT, "c": 1000 * MBIT}
    choice = chosen(measured(network(0, speeds=speeds)))
    assert said(choice) == [("warning", "net-slow", "b")]


# ---------------------------------------------------------------------------- for all there may be

_KINDS = st.sampled_from(
    ["ok", "ok", "ok", "no-answer", "refused", "unreachable", "silent", "wrong-host",
     "large-lost", "large-lost-back", "error"]
)  # fmt: skip


@st.composite
def _measured(draw: Callable[..., Any]) -> Measured:
    found: list[Network] = []
    touched: dict[str, dict[Pair, Contact]] = {}
    rates: dict[str, dict[Pair, Pace]] = {}
    for number in range(draw(st.integers(0, 4))):
        ends = draw(st.sampled_from([HOSTS, HOSTS, HOSTS, ("a", "b"), ("b", "c")]))
        some = st.frozensets(st.sampled_from(ends), max_size=1)
        one = network(
            number, hosts=ends, down=draw(some), doubled=draw(some), ssh=draw(st.booleans())
        )
        found.append(one)
        tried = [pair for pair in ALL if set(pair) <= set(one.tried)]
        kinds = draw(
            st.one_of(st.just({}), st.dictionaries(st.sampled_from(ALL), _KINDS, max_size=6))
        )
        if tried:
            touched[one.name] = {pair: Contact(kinds.get(pair, "ok")) for pair in tried}
            if draw(st.booleans()):
                rate = st.floats(0, 1e11)
                rates[one.name] = {pair: Pace(draw(rate), draw(rate)) for pair in RING}
    together = {}
    if len(rates) > 1 and draw(st.booleans()):
        names = tuple(rates)[:2]
        together[names] = {pair: (draw(st.floats(0, 1e11)), 1e8) for pair in RING}
    return Measured(HOSTS, tuple(found), touched, rates, together, draw(st.booleans()))


@given(_measured())
def test_a_run_goes_where_all_hosts_meet_or_there_is_an_error(found: Measured) -> None:
    choice = chosen(found)
    joining = [one for one in found.networks if found.joins(one)]
    errors = [one for one in choice.findings if one.level is Level.ERROR]
    assert bool(choice.route.rails) == bool(joining) == (not errors)
    for rail in choice.route.rails:
        assert rail in [one.rail for one in joining]
        assert set(rail.interfaces) == set(HOSTS)
    kinds = [one.kind for one in choice.verdicts.values()]
    assert kinds.count("chosen") == len(choice.route.rails)


@given(_measured())
def test_what_is_taken_is_no_clearly_slower_than_another(found: Measured) -> None:
    choice = chosen(found)
    if len(choice.route.rails) == 1:
        (taken,) = (one for one in found.serving() if one.rail == choice.route.rails[0])
        if taken.name in found.paces:
            rates = [found.rate(one.name) for one in found.serving() if one.name in found.paces]
            assert min(max(rates), 2.5e9) <= CLEARLY * found.rate(taken.name)


@given(_measured())
def test_what_is_kept_comes_back(found: Measured) -> None:
    for value in (found, chosen(found)):
        assert decode(type(value), json.loads(json.dumps(encode(value)))) == value


@given(_measured())
def test_every_picture_is_well_formed(found: Measured) -> None:
    root = ET.fromstring(draw(found, chosen(found)))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(HOSTS) <= set(words)


def test_a_picture_of_what_the_run_takes() -> None:
    found = measured(network(0), network(1), paces={0: paces(90 * MBIT), 1: paces(900 * MBIT)})
    picture = draw(found, chosen(found))
    assert "10.1.0.0/24 · chosen" in picture
    assert "900 Mbit/s between the slowest two, 50 µs" in picture
    assert "dasharray" not in picture
    assert "dasharray" in draw(*_with(found, doubled=frozenset(HOSTS)))


def _with(found: Measured, **more: Any) -> tuple[Measured, Choice]:
    other = Measured(HOSTS, (*found.networks, network(2, **more)), found.contacts, found.paces)
    return other, chosen(other)


# ------------------------------------------------------------------------------------ the cache


def test_the_cache_keeps_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(network(0), network(1), paces={0: paces(9e6), 1: paces(1e9)}, whole=True)
    choice = chosen(found)
    assert selection.load(tmp_path, "ab") is None
    selection.save(tmp_path, "ab", found, choice)
    known = selection.load(tmp_path, "ab")
    assert known is not None
    age = known[1].age
    assert known == (found, replace(choice, age=age))
    assert age is not None and 0 <= age < 60
    assert selection.load(tmp_path, "cd") is None
    with monkeypatch.context() as later:
        now = time.time()
        later.setattr(selection.time, "time", lambda: now + 30 * 86400)
        assert selection.load(tmp_path, "ab") is None
    os.utime(tmp_path / "net/ab.json", (0, 0))
    selection.save(tmp_path, "cd", found, choice)  # takes the old one away
    assert [path.name for path in (tmp_path / "net").iterdir()] == ["cd.json"]


def test_what_was_broken_may_be_mended_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, failed in (("ab", {1: TO_C}), ("cd", {})):
        found = measured(network(0), network(1), failed=failed)
        selection.save(tmp_path, name, found, chosen(found))
        assert selection.load(tmp_path, name) is not None
    now = time.time()
    monkeypatch.setattr(selection.time, "time", lambda: now + 3600)
    assert selection.load(tmp_path, "ab") is None
    assert selection.load(tmp_path, "cd") is not None


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    found = measured(network(0))
    selection.save(tmp_path, "ab", found, chosen(found))
    path = tmp_path / "net/ab.json"
    value = json.loads(path.read_text())
    damaged = [{}, {**value, "form": 0}, {**value, "measured": None}, {**value, "time": "x"}]
    damaged.append({**value, "choice": {**value["choice"], "findings": [{"code": 3}]}})
    for text in ("{", *map(json.dumps, damaged)):
        path.write_text(text)
        assert selection.load(tmp_path, "ab") is None


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "net").write_text("in the way")
    found = measured(network(0))
    selection.save(tmp_path, "ab", found, chosen(found))
    assert selection.load(tmp_path, "ab") is None


# ----------------------------------------------------------------------------------- the pairs


@given(st.integers(2, 40))
def test_rounds_keep_hosts_apart(count: int) -> None:
    for games in (*ring(count), *tournament(count)):
        seats = [seat for game in games for seat in game]
        assert len(set(seats)) == len(seats)
        assert all(0 <= seat < count for seat in seats)


@given(st.integers(2, 40))
def test_everybody_meets_everybody(count: int) -> None:
    met = [game for games in tournament(count) for game in games]
    every = [(i, j) for i in range(count) for j in range(count) if i != j]
    assert sorted(met) == every
    assert len(tournament(count)) <= 2 * count
    around = [game for games in ring(count) for game in games]
    assert sorted(around) == [(i, (i + 1) % count) for i in range(count)]
    assert len(ring(count)) <= 3


@given(st.integers(2, 300))
def test_few_pairs_show_every_host(count: int) -> None:
    some = some_pairs(count)
    assert set(some) == {(j, i) for i, j in some}
    assert all((i, (i + 1) % count) in some for i in range(count))
    assert all(i != j for i, j in some)
    assert len(some) <= 2 * count * count.bit_length()
    assert len(pairs(count)) == (count * (count - 1) if count <= 16 else len(some))


def test_figures_in_words() -> None:
    assert [rate_text(rate) for rate in (11.75e6, 1.175e9, 2e3, 12.0)] == [
        "94 Mbit/s", "9.4 Gbit/s", "16 kbit/s", "96 bit/s"
    ]  # fmt: skip
    assert [time_text(t) for t in (45e-6, 1.23e-3)] == ["45 µs", "1.2 ms"]


@given(
    st.lists(st.tuples(st.just("n"), st.sampled_from("abcdef"), st.sampled_from("ghi"))),
    st.integers(1, 4),
)
def test_few_at_a_time(talks: list[tuple[str, str, str]], each: int) -> None:
    taken, rest = few(talks, each)
    assert sorted(taken + rest) == sorted(talks)
    assert bool(taken) == bool(talks)
    for host in "abcdefghi":
        assert sum(host in talk for talk in taken) <= each
