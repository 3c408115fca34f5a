"""Listening, trying and measuring between hosts, over this machine's loopback."""

from __future__ import annotations

import errno
import io
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from runs import wait_for
from shanty.runtime import network_probe
from shanty.runtime.rpc.survey import links

TOKEN = secrets.token_hex(16)
HERE = "127.0.0.1"
OWN_THREADS = ("(_serve)", "(_serve_one)", "(_talk)")


def ask(verb: Callable[..., dict[str, Any]], **words: Any) -> dict[str, Any]:
    return verb(words, io.BytesIO(), lambda _progress: None)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    ask(network_probe.net_close)
    left = set(threading.enumerate()) - before
    # Others than its own may be those of a run that an earlier test has looked at.
    assert not [each for each in left if each.name.endswith(OWN_THREADS)]


def target(port: int, token: str = TOKEN, address: str = HERE, source: str = "") -> dict[str, Any]:
    return {"address": address, "port": port, "token": token, "source": source}


def listening(*addresses: str, **words: Any) -> dict[str, int]:
    answer = ask(network_probe.net_listen, addresses=addresses or [HERE], token=TOKEN, **words)
    assert not answer["errors"]
    ports: dict[str, int] = answer["ports"]
    return ports


def kinds(*targets: dict[str, Any], timeout: float = 0.3) -> list[str]:
    results = ask(network_probe.net_probe, targets=targets, timeout=timeout)["results"]
    return [result["kind"] for result in results]


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A program on a port of this machine that does `answer` with the first connection."""
    with socket.create_server((HERE, 0)) as end:

        def serve() -> None:
            connection, _ = end.accept()
            with connection, suppress(ConnectionResetError):
                answer(connection)
                while connection.recv(1 << 20):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield end.getsockname()[1]
        thread.join(5)


def greet(end: socket.socket) -> None:
    """Greet as the host that has TOKEN."""
    head = end.recv(network_probe.HEAD.size, socket.MSG_WAITALL)
    end.sendall(network_probe.answer_to(bytes.fromhex(TOKEN), head))


# -------------------------------------------------------------------------------- who answers


def test_hosts_find_each_other_at_every_address() -> None:
    ports = listening("127.0.0.2", "127.0.0.3")
    assert set(ports) == {"127.0.0.2", "127.0.0.3"}
    targets = [target(port, address=address) for address, port in ports.items()]
    answer = ask(network_probe.net_probe, targets=targets)["results"]
    assert [one["kind"] for one in answer] == ["ok", "ok"]
    assert all(0 < one["seconds"] < 2 for one in answer)
    assert [one["via"] for one in answer] == ["127.0.0.1", "127.0.0.1"]


def test_ipv6() -> None:
    try:
        ports = listening("::1")
    except AssertionError:
        pytest.skip("this machine has no IPv6")
    assert kinds(target(ports["::1"], address="::1")) == ["ok"]


def test_a_stranger_behind_the_address_is_told_from_the_host() -> None:
    other = secrets.token_hex(16)
    assert kinds(target(listening()[HERE], token=other)) == ["wrong-host"]

    def babble(end: socket.socket) -> None:
        end.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")

    with server(babble) as port:
        assert kinds(target(port)) == ["wrong-host"]

    def echo(end: socket.socket) -> None:
        end.sendall(end.recv(network_probe.HEAD.size))

    with server(echo) as port:
        assert kinds(target(port)) == ["wrong-host"]

    heads = []

    def proof(end: socket.socket) -> None:  # the last bytes of the head are one, but not the answer
        heads.append(end.recv(network_probe.HEAD.size, socket.MSG_WAITALL))
        end.sendall(heads[-1][-network_probe.PROOF :])

    with server(proof) as port:
        assert kinds(target(port)) == ["wrong-host"]

    def repeat(end: socket.socket) -> None:  # an answer that was right for another head
        heads.append(end.recv(network_probe.HEAD.size, socket.MSG_WAITALL))
        end.sendall(network_probe.answer_to(bytes.fromhex(TOKEN), heads[0]))

    with server(repeat) as port:
        assert kinds(target(port)) == ["wrong-host"]
    assert len(set(heads)) == 2
    assert not [head for head in heads if bytes.fromhex(TOKEN) in head]


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n\r\n",
        network_probe.head(bytes(16), network_probe.TRY, 1.0),
        network_probe.head(bytes.fromhex(TOKEN), network_probe.FLOOD, 1e9),
        network_probe.head(bytes.fromhex(TOKEN), network_probe.FLOOD, float("nan")),
    ],
    ids=["a browser", "another token", "too long", "no number"],
)
def test_a_stranger_gets_not_a_byte(words: bytes) -> None:
    port = listening()[HERE]
    with socket.create_connection((HERE, port), 5) as end:
        end.sendall(words)
        with suppress(ConnectionResetError):  # the rest of the words was never read
            assert end.recv(1) == b""


def test_who_listens_in_gets_not_a_byte_by_saying_it_again() -> None:
    port = listening()[HERE]
    token = bytes.fromhex(TOKEN)
    head = network_probe.head(token, network_probe.TRY, 1.0)
    with socket.create_connection((HERE, port), 5) as end:
        end.sendall(head)
        assert end.recv(network_probe.PROOF, socket.MSG_WAITALL) == network_probe.answer_to(
            token, head
        )
    with socket.create_connection((HERE, port), 5) as end:
        end.sendall(head)
        assert end.recv(1) == b""


def test_no_more_files_is_no_reason_to_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    port = listening()[HERE]
    tried = []

    def full(_self: socket.socket) -> None:
        tried.append(time.monotonic())
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", full)
        with socket.create_connection((HERE, port), 5):
            wait_for(lambda: len(tried) > 3, 5)
    assert tried[3] - tried[0] > 2 * network_probe._PAUSE
    assert kinds(target(port)) == ["ok"]


def test_who_says_nothing_keeps_nobody_waiting() -> None:
    port = listening()[HERE]
    silent = [socket.create_connection((HERE, port), 5) for _ in range(20)]
    assert kinds(*(target(port) for _ in range(50)), timeout=2.0) == ["ok"] * 50
    for end in silent:
        end.close()


def test_only_so_many_are_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_probe, "_MOST", 4)
    port = listening()[HERE]
    silent = [socket.create_connection((HERE, port), 5) for _ in range(4)]
    assert kinds(target(port)) == ["wrong-host"]  # closed at once
    for end in silent:
        end.close()
    wait_for(lambda: kinds(target(port)) == ["ok"], 5)


# ------------------------------------------------------------------------------ what goes wrong


def test_refused_at_once() -> None:
    with socket.create_server((HERE, 0)) as end:
        port = end.getsockname()[1]
    began = time.monotonic()
    assert kinds(target(port), timeout=5.0) == ["refused"]
    assert time.monotonic() - began < 2


def test_silence_takes_its_time_once() -> None:
    # a full queue of connections drops what comes, as a firewall does
    with socket.create_server((HERE, 0), backlog=0) as end:
        port = end.getsockname()[1]
        full = []
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((HERE, port))
            full.append(one)
        good = listening()[HERE]
        began = time.monotonic()
        found = kinds(*(target(port) for _ in range(20)), target(good), timeout=0.5)
        assert found == ["no-answer"] * 20 + ["ok"]
        assert 0.5 <= time.monotonic() - began < 2
        for one in full:
            one.close()


def test_a_connection_and_then_silence() -> None:
    with server(lambda _end: None) as port:
        assert kinds(target(port)) == ["silent"]


def test_large_packets_that_vanish_on_the_way_there() -> None:
    with server(greet) as port:
        assert kinds(target(port)) == ["large-lost"]


def test_large_packets_that_vanish_on_the_way_back() -> None:
    def swallow(end: socket.socket) -> None:
        greet(end)
        end.recv(network_probe.TRY_BYTES, socket.MSG_WAITALL)
        end.sendall(b"k" + bytes(1000))

    with server(swallow) as port:
        assert kinds(target(port)) == ["large-lost-back"]


def test_an_address_that_is_not_ours() -> None:
    port = listening()[HERE]
    found = ask(network_probe.net_probe, targets=[target(port, source="192.0.2.77")])["results"][0]
    assert found["kind"] == "error"
    assert "assign" in found["text"]
    answer = ask(network_probe.net_listen, addresses=["192.0.2.77", HERE], token=TOKEN)
    assert set(answer["errors"]) == {"192.0.2.77"}
    assert set(answer["ports"]) == {HERE}


# ---------------------------------------------------------------------------------- the ports


def test_the_ports_that_the_user_allows() -> None:
    with socket.create_server((HERE, 0)) as taken:
        first = taken.getsockname()[1]
        ports = listening(ports=[first, first + 50])
        assert first < ports[HERE] <= first + 50
        full = ask(network_probe.net_listen, addresses=[HERE], token=TOKEN, ports=[first, first])
        assert full["errors"] == {HERE: f"no port of {first}-{first} is free"}


def test_closing_frees_the_port() -> None:
    port = listening()[HERE]
    ask(network_probe.net_close)
    with socket.create_server((HERE, port)):
        pass
    ask(network_probe.net_close)  # once more does no harm


def test_listening_again_ends_the_first() -> None:
    port = listening()[HERE]
    listening()
    assert kinds(target(port)) == ["refused"]


def test_it_ends_by_itself_when_nobody_comes() -> None:
    before = set(threading.enumerate())
    port = listening(idle=0.1)[HERE]
    wait_for(lambda: set(threading.enumerate()) <= before, 5)
    assert kinds(target(port)) == ["refused"]


# ------------------------------------------------------------------------------------- speed


def test_the_receiver_counts() -> None:
    ports = listening("127.0.0.2", "127.0.0.3")
    targets = [target(port, address=address) for address, port in ports.items()]
    began = time.monotonic()
    results = ask(network_probe.net_send, targets=targets, seconds=0.2)["results"]
    assert time.monotonic() - began < 3
    for result in results:
        assert result["kind"] == "ok"
        assert result["rate"] > 1e6
        assert 0 < result["latency"] < 1


def test_what_comes_slowly_is_a_low_rate() -> None:
    port = listening()[HERE]
    with socket.create_connection((HERE, port), 5) as end:
        head = network_probe.head(bytes.fromhex(TOKEN), network_probe.FLOOD, 0.5)
        end.sendall(head)
        answer = network_probe.answer_to(bytes.fromhex(TOKEN), head)
        assert end.recv(network_probe.PROOF, socket.MSG_WAITALL) == answer
        for _ in range(network_probe.TRIPS):
            end.sendall(b"x")
            assert end.recv(1) == b"x"
        end.sendall(bytes(1000))
        end.settimeout(0.05)
        answer = b""
        until = time.monotonic() + 5
        while len(answer) < network_probe.RESULT.size and time.monotonic() < until:
            try:
                answer += end.recv(100)
            except TimeoutError:
                end.sendall(bytes(1000))
        total, seconds = network_probe.RESULT.unpack(answer)
        assert 0 < total <= 11_000
        assert 0.2 < seconds < 2


def test_no_flood_without_a_receiver() -> None:
    with socket.create_server((HERE, 0)) as end:
        port = end.getsockname()[1]
    result = ask(network_probe.net_send, targets=[target(port)])["results"][0]
    assert (result["kind"], result["rate"]) == ("refused", 0.0)


# ----------------------------------------------------------------------------------- the parts


def test_links_as_the_kernel_tells_them(tmp_path: Path) -> None:
    def link(name: str, **files: str) -> Path:
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text + "\n")
        return tmp_path / name

    link("eth0", flags="0x1003", speed="1000", mtu="1500", uevent="INTERFACE=eth0")
    link("tun0", flags="0x1091", speed="10", mtu="1500", tun_flags="0x1")
    link("br0", flags="0x1002", speed="-1", mtu="9000", uevent="DEVTYPE=bridge\nINTERFACE=br0")
    (link("wlan0", flags="0x1003", mtu="1500", uevent="A=b") / "wireless").mkdir()
    (tmp_path / "bonding_masters").write_text("")
    assert links(str(tmp_path)) == {
        "br0": {"up": False, "speed": 0, "mtu": 9000, "kind": "bridge"},
        "eth0": {"up": True, "speed": 1000, "mtu": 1500, "kind": ""},
        "tun0": {"up": True, "speed": 10, "mtu": 1500, "kind": "tun"},
        "wlan0": {"up": True, "speed": 0, "mtu": 1500, "kind": "wlan"},
    }
    assert links(str(tmp_path / "none")) == {}
