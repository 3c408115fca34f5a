"""Deciding with real RPC clients: three processes of this machine, each at addresses of its own."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients import client
from shanty.cli.net import _ports
from shanty.launch.network import measure, selection
from shanty.launch.network.measure import Talk
from shanty.launch.network.selection import choose
from shanty.launch.network.survey import chosen
from shanty.launch.network.topology import (
    Contact,
    Interface,
    Measured,
    Network,
    SurveyedHost,
    fingerprint,
)  # fmt: skip
from shanty.launch.transport import reachability
from shanty.launch.transport.rpc_client import Answer, RpcClient
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.site import Host

NAMES = ("a", "b", "c")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has one loopback address")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SurveyedHost]]:
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        found = []
        for number, name in enumerate(NAMES, 1):
            one = stack.enter_context(client(name, folder / name))
            survey: dict[str, Any] = {"addresses": []}
            found.append(SurveyedHost(name, one, survey, f"127.0.0.{number}"))
        yield found


@pytest.fixture(autouse=True)
def short_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.05)


def network(third: int, **more: Any) -> Network:
    """127.0.N.0/24, which is loopback's, but a network like any other for what is tried."""
    ends = {
        name: Interface(f"lo{third}", f"127.0.{third}.{number}", 24)
        for number, name in enumerate(NAMES, 1)
    }
    return Network(f"127.0.{third}.0/24", ends, **{"ssh": third == 0, **more})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verbs that RPC clients are asked, one entry each."""
    verbs: list[str] = []
    ask = RpcClient.ask

    def noted(self: RpcClient, verb: str, **words: Any) -> Answer:
        verbs.append(verb)
        return ask(self, verb, **words)

    monkeypatch.setattr(RpcClient, "ask", noted)
    return verbs


def seen(monkeypatch: pytest.MonkeyPatch, *networks: Network) -> None:
    monkeypatch.setattr(selection, "networks", lambda _hosts: list(networks))


def test_one_network_is_only_tried(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    seen(monkeypatch, network(0))
    said: list[str] = []
    first = selection.decide(hosts, tmp_path, said.append)
    assert first.age is None
    assert first.route.rails == (network(0).rail,)
    assert first.joining == first.route.rails
    assert "net-send" not in asked or first.findings == ()  # a busy machine looks slow
    assert said[-1] == ""
    asked.clear()
    again = selection.decide(hosts, tmp_path)
    assert again.age is not None
    assert again.route == first.route
    assert sorted(asked) == ["net-close"] * 3 + ["net-listen"] * 3 + ["net-probe"] * 3
    asked.clear()
    assert selection.examine(hosts, tmp_path)[0].whole  # what a run measures is too little to show
    assert "net-send" in asked


def test_several_networks_are_measured_once(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    dead = network(9, doubled=frozenset(NAMES))
    seen(monkeypatch, network(0), network(1), dead)
    first = selection.decide(hosts, tmp_path)
    assert first.age is None
    assert len(first.joining) == 2
    assert asked.count("net-send") >= 6
    assert [one.code for one in first.findings] == ["net-isolated"]
    asked.clear()
    again = selection.decide(hosts, tmp_path)
    assert (again.route, again.findings, again.joining) == (
        first.route,
        first.findings,
        first.joining,
    )
    assert "net-send" not in asked


def test_what_no_longer_holds_is_measured_again(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Network(
        "192.0.2.0/24",
        {name: Interface("tb0", f"192.0.2.{number}", 24) for number, name in enumerate(NAMES)},
    )
    every = [(a, b) for a in NAMES for b in NAMES if a != b]
    old = Measured(NAMES, (gone,), {gone.name: {pair: Contact("ok") for pair in every}})
    choice = choose(old, {})
    assert choice.route.rails
    selection.save(tmp_path, fingerprint(hosts), old, choice)
    seen(monkeypatch, network(0))
    found = selection.decide(hosts, tmp_path)
    assert found.age is None
    assert found.route.rails == (network(0).rail,)


def test_what_is_broken_is_not_kept(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, network(0, down=frozenset("b")))
    first = selection.decide(hosts, tmp_path)
    assert first.route.rails == ()
    assert [one.code for one in first.findings] == ["net-dead", "net-none"]
    seen(monkeypatch, network(0))
    assert selection.decide(hosts, tmp_path).route.rails


def test_examine_knows_every_pair_and_a_run_knows_it_too(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    some = network(2)
    partial = Network(some.name, {name: some.ends[name] for name in ("a", "b")})
    seen(monkeypatch, network(0), partial)
    measured, choice = selection.examine(hosts, tmp_path)
    assert len(measured.paces["127.0.0.0/24"]) == 6
    assert set(measured.contacts["127.0.2.0/24"]) == {("a", "b"), ("b", "a")}
    assert choice.verdicts["127.0.2.0/24"].kind == "partial"
    asked.clear()
    assert selection.examine(hosts, tmp_path)[0] == measured
    assert "net-send" not in asked
    assert selection.decide(hosts, tmp_path).age is not None
    assert selection.decide(hosts, tmp_path, fresh=True).age is None
    asked.clear()
    selection.examine(hosts, tmp_path, fresh=True)
    assert "net-send" in asked


def test_that_it_is_slow_is_said_when_it_was_measured(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, network(0))
    monkeypatch.setattr(measure, "_SUSPECT", 0.0)
    monkeypatch.setattr("shanty.launch.network.diagnosis.SLOW", 1e15)
    first = selection.decide(hosts, tmp_path)
    assert {one.code for one in first.findings} == {"net-slow"}
    again = selection.decide(hosts, tmp_path)
    assert again.age is not None
    assert again.findings == ()
    assert selection.examine(hosts, tmp_path)[1].findings  # which shows how old it is


class Wire(measure.Listeners):
    """Hosts on a wire on which a host can have so many talks at once; some pairs never pass."""

    def __init__(self, names: list[str], room: int, never: set[tuple[str, str]]) -> None:
        super().__init__(dict.fromkeys(names), {}, {name: {"errors": {}} for name in names})  # type: ignore[arg-type]
        self.room, self.never = room, never
        self.rounds: list[int] = []

    def _try(self, plan: Mapping[Talk, Network], timeout: float) -> dict[Talk, Contact]:
        busy = Counter(name for talk in plan for name in talk[1:])
        self.rounds.append(len(plan))
        found = {}
        for talk in plan:
            crowded = max(busy[name] for name in talk[1:]) > self.room
            kind = "large-lost" if crowded or talk[1:] in self.never else "ok"
            found[talk] = Contact(kind)
        return found

    def failed(self) -> set[tuple[str, str]]:
        ends = {name: Interface("eth0", f"10.0.0.{i}", 24) for i, name in enumerate(self.clients)}
        (contacts,) = self.contacts([Network("n", ends)]).values()
        assert len(contacts) == len(ends) * (len(ends) - 1)
        return {pair for pair, one in contacts.items() if not one.ok}


SIXTEEN = [f"h{number}" for number in range(16)]


@pytest.mark.parametrize("room", [1, 2, 5, 100])
def test_what_never_passes_is_told_from_a_slow_wire(room: int) -> None:
    for broken in (set(), {(name, "h3") for name in SIXTEEN if name != "h3"}):
        assert Wire(SIXTEEN, room, broken).failed() == broken


def test_what_is_broken_everywhere_is_seen_soon() -> None:
    wire = Wire(SIXTEEN, 100, {(a, b) for a in SIXTEEN for b in SIXTEEN if a != b})
    assert len(wire.failed()) == 240
    assert len(wire.rounds) <= 5


def test_what_is_shown_is_measured_again_where_it_has_changed(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    seen(monkeypatch, network(0), network(1))
    now = selection.examine(hosts, tmp_path)[0]
    failed = {**now.contacts["127.0.1.0/24"], ("a", "b"): Contact("no-answer")}
    before = replace(now, contacts={**now.contacts, "127.0.1.0/24": failed})
    selection.save(tmp_path, fingerprint(hosts), before, choose(before, {}))
    asked.clear()
    assert selection.examine(hosts, tmp_path)[0].joins(network(1))
    assert "net-send" in asked


def test_a_single_host_is_asked_nothing(
    hosts: list[SurveyedHost], tmp_path: Path, asked: list[str]
) -> None:
    found = selection.decide(hosts[:1], tmp_path)
    assert (found.route.rails, found.findings, asked) == ((), (), [])
    _, shown = selection.examine(hosts[:1], tmp_path)
    assert (shown.route.rails, shown.findings, asked) == ((), (), [])


def test_the_ports_that_are_allowed(
    hosts: list[SurveyedHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, network(0))
    answers = []
    ask = RpcClient.ask

    def noted(self: RpcClient, verb: str, **words: Any) -> Answer:
        answer = ask(self, verb, **words)
        if verb == "net-listen":
            answers.extend(answer.values["ports"].values())
        return answer

    monkeypatch.setattr(RpcClient, "ask", noted)
    assert selection.decide(hosts, tmp_path, ports=(20300, 20399)).age is None
    assert len(answers) == 3
    assert all(20300 <= port <= 20399 for port in answers)
    assert selection.decide(hosts, tmp_path, ports=(20400, 20499)).age is None  # another question


def test_a_host_that_is_lost_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[SurveyedHost]
) -> None:
    seen(monkeypatch, network(0))
    with client("c", tmp_path / "c") as lost:
        three = [*hosts[:2], SurveyedHost("c", lost, {"addresses": []}, "127.0.0.3")]
        lost._stream.process.kill()
        with pytest.raises(PrepareError, match="c is lost"):
            selection.decide(three, tmp_path)
    assert not (tmp_path / "net").exists()


# ----------------------------------------------------------------------------- what was typed


def test_hosts_have_to_be_named_once(tmp_path: Path) -> None:
    assert [host.name for host in chosen("a,b:4", None, tmp_path)] == ["a", "b"]
    with pytest.raises(UsageError, match="no hosts are given"):
        chosen(None, None, tmp_path)
    with pytest.raises(UsageError, match="both given"):
        chosen("a", "hosts", tmp_path)
    with pytest.raises(UsageError, match="more than once"):
        chosen("ann@a,bob@a", None, tmp_path)
    a, b = Host("a"), Host("b")
    surveys = {name: {"instance": "1", "hostname": "c"} for name in "ab"}
    with pytest.raises(UsageError, match="a and b are the same machine"):
        reachability.distinct([a, b], surveys)


@pytest.mark.parametrize("text", ["20999-20000", "all", "20000", "0-70000"])
def test_ports_that_are_not_a_range(text: str) -> None:
    with pytest.raises(UsageError, match="range of ports"):
        _ports(text)
