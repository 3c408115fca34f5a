"""What does not pass between hosts, in words; and a check with the node agents of two hosts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from plans import plan_of
from runs import wait_for
from shanty.runtime.diagnosis.link_check import LinkCheck, Tried, judge
from shanty.runtime.diagnosis.link_probe import LinkProbe
from shanty.runtime.messages import LinkResults
from shanty.runtime.network_probe import CLOSED

HOSTS = ("a", "b", "c")


def tries(**kinds: str) -> list[Tried]:
    """All ways between three hosts; `ab="refused"` for one that is not well."""
    return [
        Tried(one, other, kinds.get(one + other, "ok"), "some error")
        for one in HOSTS
        for other in HOSTS
        if one != other
    ]


@pytest.mark.parametrize(
    ("kinds", "what", "host"),
    [
        (
            {"bc": "no-answer", "cb": "no-answer"},
            "b and c do not reach each other (no answer, as if packets were dropped)",
            "c",
        ),
        (
            {"bc": "no-answer"},
            "b gets no connection to c (no answer, as if packets were dropped), while c gets one "
            "to it",
            "c",
        ),
        (
            {"ac": "silent", "ca": "no-answer", "bc": "no-answer", "cb": "no-answer"},
            "c and a, b do not reach each other (no answer, as if packets were dropped)",
            "c",
        ),
        (
            {"bc": "refused", "cb": "no-answer"},
            "b and c do not reach each other (connections are refused, as by a firewall)",
            "c",
        ),
        ({"ba": "unreachable", "ab": "unreachable"}, "a and b do not reach each other (some error)",
         "b"),
        (
            {"ac": "large-lost", "bc": "large-lost", "ca": "large-lost-back"},
            "large packets from a to c, from b to c vanish, while small ones pass",
            "c",
        ),
        (
            {"ca": "large-lost", "cb": "large-lost"},
            "large packets from c to a, from c to b vanish, while small ones pass",
            "c",
        ),
        ({"ac": "large-lost"}, "large packets from a to c vanish, while small ones pass", "c"),
        ({"ab": "wrong-host"}, "at the address of b, a meets another machine", "b"),
        ({"ba": "error", "ab": "no-answer"},
         "b cannot use its own address on the run's network: some error", "b"),
    ],
)  # fmt: skip
def test_what_does_not_pass_is_said(kinds: dict[str, str], what: str, host: str) -> None:
    fault = judge(tries(**kinds), {})
    assert fault is not None
    assert (fault.what, fault.host) == (what, host)
    assert fault.fix


def test_a_host_that_comes_to_its_end_is_no_other_machine() -> None:
    closed = Tried("a", "b", "wrong-host", CLOSED)
    assert judge([closed, *tries()], {}) is None


def test_a_connection_that_is_stuck_counts_where_new_ones_pass() -> None:
    assert judge(tries(), {}) is None
    fault = judge(tries(), {("a", "b"): 5, ("c", "a"): 6})
    assert fault is not None
    assert fault.what.startswith("a connection from c to a is dead, though new ones pass: ")
    assert "forgotten the connection" in fault.fix
    dropped = judge(tries(ab="no-answer", ba="no-answer"), {("a", "b"): 5})
    assert dropped is not None
    assert dropped.what.startswith("a and b do not reach each other")


class Hosts:
    """A controller with two hosts, both at addresses of this machine's loopback."""

    def __init__(self) -> None:
        two = plan_of(2)
        node = two.lead
        nodes = (
            node._replace(name="a", interfaces=(("lo", "127.0.0.1"),)),
            node._replace(name="b", interfaces=(("lo", "127.0.0.2"),)),
        )
        self.plan = two._replace(attempt=two.attempt._replace(nodes=nodes))
        self.deaf: set[str] = set()
        self.check: LinkCheck
        self.probes = {
            name: LinkProbe(self.plan, {}, lambda message, name=name: self.said(name, message))
            for name in ("a", "b")
        }

    def said(self, name: str, message: Any) -> None:
        self.heard.append((name, message))

    def tell_host(self, host: str, order: Any) -> None:
        if host not in self.deaf:
            self.probes[host].obey(order, list)

    def run(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        nodes = self.plan.attempt.nodes
        self.check = LinkCheck(nodes, 1, time.monotonic(), self.tell_host, (0.3,))

        def over() -> bool:
            while self.heard:
                self.check.hear(*self.heard.pop(0))
            self.check.tick(time.monotonic())
            return self.check.over

        wait_for(over, 20)


def test_hosts_that_reach_each_other_are_well() -> None:
    hosts = Hosts()
    hosts.run()
    assert hosts.check.fault is None
    assert all(probe._listener is None for probe in hosts.probes.values())


def test_a_host_that_says_nothing_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shanty.runtime.diagnosis.link_check._LISTENING", 0.2)
    hosts = Hosts()
    hosts.deaf = {"b"}
    hosts.run()
    assert hosts.check.fault is None


def test_words_of_another_check_are_passed_over() -> None:
    hosts = Hosts()
    hosts.run()
    before = SimpleNamespace(**vars(hosts.check))
    hosts.check.hear("a", LinkResults(7, (("refused", ""),)))
    hosts.check.hear("stranger", LinkResults(1, (("refused", ""),)))
    assert vars(hosts.check) == vars(before)
