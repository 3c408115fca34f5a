"""What stands between the launcher and its daemons in an elastic run."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator

import pytest

from runs import wait_for
from shanty.runtime.rank.daemon_relay import DaemonRelay

COMMAND = (
    'x/prted --prtemca prte_hnp_uri "r@0.0;tcp://127.0.0.1:{0}:24" --parent "tcp://127.0.0.1:{0}:8"'
)


@pytest.fixture
def launcher() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


@pytest.fixture
def make() -> Iterator[Callable[[str], DaemonRelay]]:
    """Make relays, which listen to the end of the test."""
    made: list[DaemonRelay] = []

    def begin(command: str) -> DaemonRelay:
        made.append(DaemonRelay(command))
        return made[-1]

    yield begin
    for relay in made:
        relay._listener.close()


@pytest.fixture
def relayed(
    launcher: socket.socket, make: Callable[[str], DaemonRelay]
) -> tuple[DaemonRelay, socket.socket]:
    """A relay before the launcher, and a daemon that has connected to it."""
    port = launcher.getsockname()[1]
    relay = make(COMMAND.format(port))
    ports = set(re.findall(r"127\.0\.0\.1:(\d+):", relay.command))
    assert len(ports) == 1 and str(port) not in ports
    daemon = socket.create_connection(("127.0.0.1", int(ports.pop())), 10)
    return relay, daemon


def test_a_launcher_does_not_learn_of_a_lost_daemon(
    launcher: socket.socket, relayed: tuple[DaemonRelay, socket.socket]
) -> None:
    relay, daemon = relayed
    daemon.sendall(b"I am 1")
    there, _ = launcher.accept()
    with there:
        there.settimeout(10)
        assert there.recv(100) == b"I am 1"
        there.sendall(b"welcome")
        assert daemon.recv(100) == b"welcome"
        daemon.close()
        relay.lose()
        there.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is neither closed nor reset
            there.recv(1)
        there.setblocking(True)
        there.sendall(bytes(1 << 20))  # which nobody reads, and does not block
        with pytest.raises(BlockingIOError):
            there.recv(1, socket.MSG_DONTWAIT)
        relay._lost = False  # else the process ends with the launcher, as it should


def test_a_silent_daemon_is_let_go(
    launcher: socket.socket, relayed: tuple[DaemonRelay, socket.socket]
) -> None:
    relay, daemon = relayed
    daemon.sendall(b"I am 1")
    there, _ = launcher.accept()
    with there, daemon:
        wait_for(lambda: len(relay._daemons) == 1, 5, "not connected")
        relay.lose()
        assert daemon.recv(1) == b""
        there.sendall(bytes(1 << 20))
        relay._lost = False


def test_the_end_of_the_launcher_is_passed_on(
    launcher: socket.socket, relayed: tuple[DaemonRelay, socket.socket]
) -> None:
    _, daemon = relayed
    with daemon:
        daemon.sendall(b"I am 1")
        launcher.accept()[0].close()
        assert daemon.recv(1) == b""


def test_who_says_nothing_does_not_reach_the_launcher(
    launcher: socket.socket, relayed: tuple[DaemonRelay, socket.socket]
) -> None:
    _, daemon = relayed
    daemon.close()
    launcher.settimeout(0.2)
    with pytest.raises(TimeoutError):
        launcher.accept()


def test_only_a_launchers_address_is_replaced(make: Callable[[str], DaemonRelay]) -> None:
    assert DaemonRelay("hydra_pmi_proxy --port x").command == "hydra_pmi_proxy --port x"
    command = make('prted "r@0.0;tcp6://[::1,fe80::1]:40001:64,64"').command
    assert re.fullmatch(r'prted "r@0\.0;tcp6://\[::1,fe80::1\]:\d+:64,64"', command)


def test_a_launcher_with_addresses_of_both_kinds(
    launcher: socket.socket, make: Callable[[str], DaemonRelay]
) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    port = launcher.getsockname()[1]
    command = make(f'prted "r@0.0;tcp://127.0.0.1:{port}:24;tcp6://[::1]:9:64"').command
    found = re.findall(r"(127\.0\.0\.1|::1)\]?:(\d+):", command)
    assert [address for address, _ in found] == ["127.0.0.1", "::1"]
    for address, at in found:
        with socket.create_connection((address, int(at)), 10) as daemon:
            daemon.sendall(b"I am 1")
            with launcher.accept()[0] as there:
                assert there.recv(100) == b"I am 1"


def test_it_takes_a_port_of_the_range_that_ranks_are_held_to(
    launcher: socket.socket,
    make: Callable[[str], DaemonRelay],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        last = taken.getsockname()[1]
        monkeypatch.setenv("OMPI_MCA_btl_tcp_port_min_v4", str(last - 40))
        monkeypatch.setenv("OMPI_MCA_btl_tcp_port_range_v4", "41")
        command = make(COMMAND.format(launcher.getsockname()[1])).command
    port = int(re.findall(r"127\.0\.0\.1:(\d+):", command)[0])
    assert last - 40 <= port < last
