"""Ports for frameworks, which address each rank is given, and which names mean this machine."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from plans import node
from shanty.runtime import addresses, localhost
from shanty.runtime.plan import Attempt, Node
from shanty.runtime.rank import exec as rank_exec


def attempt(*nodes: Node, placement: dict[str, int], ranks: int | None = None) -> Attempt:
    values = {"hosts": [], "networks": [], "ranks": ranks}
    return Attempt(nodes, (), values, {}, {}, placement, first=nodes[0].number)


def host(number: int, address: str) -> Node:
    return node(number=number, name=f"h{number}", address=f"h{number}")._replace(
        interfaces=(("eth0", address),)
    )


def test_each_rank_has_its_own() -> None:
    planned = attempt(host(0, "10.0.0.1"), host(1, "fd00::2"), placement={"h0": 1, "h1": 2})
    found = addresses.variables(planned, {0: [1, 2], 1: [3, 4, 5]})
    assert found == {
        "MASTER_PORT": "1",
        addresses.ADDRESSES: "10.0.0.1:2,[fd00::2]:4,[fd00::2]:5",
    }


def test_only_rank_0_has_one_where_the_launcher_decides() -> None:
    planned = attempt(host(0, "10.0.0.1"), host(1, "10.0.0.2"), placement={})
    found = addresses.variables(planned, {0: [1, 2], 1: [3, 4, 5]})
    assert found[addresses.ADDRESSES] == "10.0.0.1:2"


def test_more_ranks_than_a_variable_may_name() -> None:
    count = 3000
    planned = attempt(host(0, "10.0.0.1"), placement={"h0": count})
    found = addresses.variables(planned, {0: list(range(count + 1))})
    assert found[addresses.ADDRESSES] == "10.0.0.1:1"


def test_on_one_host_all_have_one() -> None:
    planned = attempt(host(0, "10.0.0.1"), placement={}, ranks=3)
    ports = addresses.ports_of_host(planned, planned.nodes[0])
    assert len(set(ports)) == 4
    found = addresses.variables(planned, {0: ports})
    assert found[addresses.ADDRESSES] == ",".join(f"10.0.0.1:{port}" for port in ports[1:])


def test_ports_are_free_and_given_to_nobody_else() -> None:
    ports = localhost.free_ports(50)
    assert len(set(ports)) == 50
    assert all(10000 <= port < localhost._first_ephemeral_port() for port in ports)
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("", port))


def test_no_room_below_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localhost, "_first_ephemeral_port", lambda: 1024)
    assert len(set(localhost.free_ports(5))) == 5


OWN = os.uname().nodename


def test_names_of_this_machine() -> None:
    names = ("localhost", "127.0.0.1", "::1", "[::1]", OWN, OWN.partition(".")[0])
    assert all(localhost.is_here(name) for name in names)
    others = ("", "other", "localhost:2", "::2", f"{OWN}x")
    assert not any(localhost.is_here(name) for name in others)
    for hosts in ("", "localhost:4 127.0.0.1:2", f"me@{OWN}:1", "[::1]:2 ::1", "me@localhost"):
        assert localhost.all_here(hosts.split())
    for hosts in (
        "localhost:4 other:2",
        "ssh://localhost:2222",
        "ssh://me@localhost:22",
        "fe80::1",
    ):
        assert not localhost.all_here(hosts.split())


def test_the_cluster_of_tensorflow() -> None:
    text = rank_exec.tensorflow_cluster(["a:1", "[fd00::2]:2"], 1)
    assert json.loads(text) == {
        "cluster": {"worker": ["a:1", "[fd00::2]:2"]},
        "task": {"type": "worker", "index": 1},
    }


class TestProxies:
    ADDRESSES = ("10.0.0.1:5", "10.0.0.1:6", "[fd00::2]:7")

    def changed(self, **environ: str) -> dict[str, str]:
        rank_exec.pass_by_proxies(environ, self.ADDRESSES)
        return environ

    def test_there_is_none(self) -> None:
        assert self.changed(no_proxy="x") == {"no_proxy": "x"}

    def test_the_run_s_hosts_are_added(self) -> None:
        found = self.changed(https_proxy="p", no_proxy="x", no_grpc_proxy="y")
        assert found["no_proxy"] == "x,10.0.0.1,fd00::2"
        assert found["no_grpc_proxy"] == "y,10.0.0.1,fd00::2"

    def test_in_capitals(self) -> None:
        found = self.changed(HTTP_PROXY="p", NO_PROXY="x")
        assert found["no_proxy"] == found["NO_PROXY"] == "x,10.0.0.1,fd00::2"

    def test_no_proxy_for_anything_stays_so(self) -> None:
        assert self.changed(http_proxy="p", no_proxy="*")["no_proxy"] == "*"

    def test_nothing_known(self) -> None:
        environ = {"http_proxy": "p"}
        rank_exec.pass_by_proxies(environ, [""])
        assert environ.get("no_proxy", "") == ""


def test_variables_are_what_ranks_look_for() -> None:
    source = Path(rank_exec.__file__).read_text()
    assert f'"{addresses.ADDRESSES}"' in source
