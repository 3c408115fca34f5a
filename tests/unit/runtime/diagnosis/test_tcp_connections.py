"""A process' connections to other hosts are found, and kept alive from outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shanty.runtime.diagnosis import tcp_connections
from shanty.runtime.diagnosis.tcp_connections import (
    Connection,
    KeepAlive,
    Traffic,
    connections,
    owners,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

PROGRAM = """
import socket, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2:]:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in zip((socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT),
                             map(int, sys.argv[2:])):
        end.setsockopt(socket.IPPROTO_TCP, option, value)
print(end.fileno(), flush=True)
sys.stdin.readline()
print(*[end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *(
    end.getsockopt(socket.IPPROTO_TCP, option)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT))], flush=True)
sys.stdin.readline()
"""


@contextmanager
def another_process(*words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """One that has a connection; the process, and the descriptor of its socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, port, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        connection, _ = server.accept()
        with connection, process:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
            process.kill()


def options(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [int(word) for word in process.stdout.readline().split()]


def reach(pid: int, fd: int) -> None:
    try:
        tcp_connections._keep_alive(pid, fd)
    except PermissionError:
        pytest.skip("no process may get at another one's descriptors here")


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ((), [1, 10, 10, 127]),
        # PRRTE's are rare: they come more often, and give up when they would have.
        (("300", "20", "9"), [1, 10, 10, (300 + 20 * 9 - 10) // 10]),
        (("5", "3", "4"), [1, 5, 3, 4]),  # frequent ones stay as they are
    ],
)
def test_keep_alives_are_switched_on(own: tuple[str, ...], kept: list[int]) -> None:
    with another_process(*own) as (process, fd):
        reach(process.pid, fd)
        assert options(process) == kept


def test_a_sockets_owner_is_found() -> None:
    with another_process() as (process, fd):
        inode = Path(f"/proc/{process.pid}/fd/{fd}").stat().st_ino
        assert owners([1 << 22, process.pid], {inode}) == {inode: (process.pid, fd)}


def test_the_kernels_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n"
        "   0: 0200000A:1F90 0300000A:D431 01 000004D2:00000000 01:00000064 00000005"
        "     0        0 4711 2 0 100 4 30 10 -1\n"
        "   1: 0200000A:1F90 0300000A:D432 01 00000000:00000000 02:00000064 00000000"
        "     0        0 4712 2 0 100 4 30 10 -1\n"
        "   2: 0100007F:1F90 0100007F:D432 01 00000000:00000000 00:00000000 00000000"
        "     0        0 4713 2 0 100 4 30 10 -1\n"
        "   3: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000"
        "     0        0 4714 2 0 100 4 30 10 -1\n"
    )
    if sys.byteorder != "little":
        pytest.skip("the table above is of a little-endian machine")
    from io import StringIO

    def opened(path: str) -> StringIO:
        if path.endswith("6"):
            raise FileNotFoundError
        return StringIO(table)

    monkeypatch.setattr(tcp_connections, "open", opened, raising=False)
    stuck, idle = connections()
    assert stuck == (4711, "10.0.0.2", "10.0.0.3", 1234, 5)
    assert idle == (4712, "10.0.0.2", "10.0.0.3", 0, 0)


def test_only_new_connections_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [tcp_connections.Connection(7, "10.0.0.2", "10.0.0.3", 0, 0)]
    asked: list[set[int]] = []

    def owned(_pids: object, wanted: set[int]) -> dict[int, tuple[int, int]]:
        asked.append(wanted)
        return {}

    monkeypatch.setattr(tcp_connections, "connections", lambda: list(there))
    monkeypatch.setattr(tcp_connections, "owners", owned)
    keep = KeepAlive(list)
    for second in range(60):
        keep.tick(float(second))
    assert asked == [{7}]
    there.append(there[0]._replace(inode=8))
    keep.tick(100.0)
    assert asked == [{7}, {8}]


def test_the_bytes_of_a_process_own_connections_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of other processes, and those from before, do not count."""
    with socket.create_server(("127.0.0.1", 0)) as server, another_process() as (other, _):
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            inode = os.fstat(near.fileno()).st_ino
            known = [Connection(inode, "10.0.0.1", "10.0.0.2", 0, 0)]  # as if to another host
            monkeypatch.setattr(tcp_connections, "connections", lambda: known)
            near.sendall(bytes(100))
            traffic, strangers = Traffic(), Traffic()
            assert traffic.total([os.getpid()]) == strangers.total([other.pid]) == (0, 0)
            near.sendall(bytes(3000))
            far.sendall(bytes(50))
            assert far.recv(3100, socket.MSG_WAITALL)
            assert near.recv(50, socket.MSG_WAITALL)
            assert traffic.total([os.getpid()]) == (3000, 50)
            assert strangers.total([other.pid]) == (0, 0)
