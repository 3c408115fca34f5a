"""The TCP connections of a host's ranks: keeps them alive, and finds those that are stuck.

A firewall, a NAT or a load balancer may forget a connection that is idle for a while, and silently
drop later packets. Few MPIs have a setting against that, so the node agent switches on the kernel's
keep-alives for them. It reaches a rank's socket by pidfd_getfd(2), which needs the rights of
ptrace(2); where these are missing, nothing is changed. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

_DIAGNOSIS, _BY_FAMILY, _DUMP = 4, 20, 0x301  # of netlink: sock_diag(7), its request
_INFORMATION = 2  # of a connection: the struct tcp_info
_CARRIED = 120  # where that has the bytes sent and acknowledged, and those received
_ESTABLISHED = 1  # the kernel's number for the state of a connection
_RETRANSMITS = 1  # and for the timer that is set while something is not acknowledged
_PIDFD_GETFD = 438  # the same on all machines
_SHORTEST, _LONGEST = 5.0, 30.0  # seconds between two looks for new connections
_LONGER = 1.5  # times, after a look that found none
# Seconds of silence after which the kernel probes the other end, and between two probes; and how
# many may stay unanswered: for longer than data may, so a link that recovers finds all alive.
_IDLE, _BETWEEN, _MOST = 10, 10, 127


class Connection(NamedTuple):
    """An established connection, as /proc/net/tcp has it.

    `unsent` are bytes that the other end has not acknowledged, `again` is how often the kernel
    has sent them again since the last packet of the other end.
    """

    inode: int
    local: str
    remote: str
    unsent: int
    again: int


def connections() -> List[Connection]:
    """Returns the connections from this host to others."""
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(path) as file:
            next(file)
            for line in file:
                words = line.split()
                if int(words[3], 16) == _ESTABLISHED:
                    local, remote = _address(words[1]), _address(words[2])
                    if remote != local and not remote.startswith("127.") and remote != "::1":
                        unsent = int(words[4].partition(":")[0], 16)
                        waits = int(words[5].partition(":")[0], 16) == _RETRANSMITS
                        again = int(words[6], 16) if waits else 0
                        found.append(Connection(int(words[9]), local, remote, unsent, again))
    return found


def _address(word: str) -> str:
    """Returns an address, of which /proc has 32-bit words in hexadecimal, in host byte order."""
    digits = word.partition(":")[0]
    packed = b"".join(
        struct.pack("=I", int(digits[i : i + 8], 16)) for i in range(0, len(digits), 8)
    )
    if len(packed) == 16 and packed.startswith(bytes(10) + b"\xff\xff"):
        packed = packed[12:]  # IPv4 by a socket of IPv6
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def owners(pids: Iterable[int], wanted: Set[int]) -> Dict[int, Tuple[int, int]]:
    """Returns the process and the descriptor of each socket in `wanted`, by its inode."""
    found: Dict[int, Tuple[int, int]] = {}
    names = {f"socket:[{inode}]": inode for inode in wanted}
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inode = names.get(os.readlink(f"/proc/{pid}/fd/{fd}"))
                    if inode is not None:
                        found[inode] = pid, int(fd)
    return found


def stuck(pids: Iterable[int], least: int) -> List[Connection]:
    """Returns connections of the processes whose data was sent again `least` times or more."""
    found = {one.inode: one for one in connections() if one.again >= least and one.unsent}
    ours = owners(pids, set(found)) if found else {}
    return [one for inode, one in found.items() if inode in ours]


class Traffic:
    """Counts the bytes that processes have exchanged with other hosts over TCP."""

    def __init__(self) -> None:
        self._before: Optional[Dict[int, Tuple[int, int]]] = None  # by the socket's inode
        self._sum = [0, 0]

    def total(self, pids: Iterable[int]) -> Tuple[int, int]:
        """Returns how many bytes were sent and received since the first call, from then on."""
        there = {one.inode for one in connections()}
        ours = owners(pids, there) if there else {}
        carried = {i: each for i, each in _carried().items() if i in ours} if ours else {}
        if self._before is not None:
            for inode, counts in carried.items():
                before = self._before.get(inode, (0, 0))
                for way in (0, 1):
                    self._sum[way] += max(0, counts[way] - before[way])
        self._before = carried
        return self._sum[0], self._sum[1]


def _carried() -> Dict[int, Tuple[int, int]]:
    """Returns the bytes that each connection of this host has sent and received, by its inode."""
    found: Dict[int, Tuple[int, int]] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with (
            contextlib.suppress(OSError, AttributeError, struct.error),
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _DIAGNOSIS) as kernel,
        ):
            kernel.settimeout(1.0)
            wanted = struct.pack(
                "=BBBxI48x", family, socket.IPPROTO_TCP, 1 << _INFORMATION - 1, 1 << _ESTABLISHED
            )
            kernel.send(struct.pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _DUMP, 1, 0) + wanted)
            kind = _BY_FAMILY
            while kind == _BY_FAMILY:
                data = kernel.recv(1 << 18)
                while data and kind == _BY_FAMILY:
                    length, kind = struct.unpack_from("=IH", data)
                    if kind == _BY_FAMILY:
                        found.update(_counted(data[16:length]))
                    data = data[(length + 3) & ~3 :]
    return found


def _counted(message: bytes) -> Dict[int, Tuple[int, int]]:
    """Reads the inode and the bytes of one connection in the answer of sock_diag(7)."""
    at = 72  # behind the struct inet_diag_msg, whose last word is the inode
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INFORMATION and length >= 4 + _CARRIED + 16:
            sent, received = struct.unpack_from("=QQ", message, at + 4 + _CARRIED)
            return {struct.unpack_from("=I", message, 68)[0]: (sent, received)}
        at += max(4, (length + 3) & ~3)
    return {}


class KeepAlive:
    """Keeps the connections alive that a run's processes on this host have to other hosts."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """`pids` returns the processes."""
        self._pids = pids
        self._known: Set[int] = set()
        self._next = 0.0
        self._pause = _SHORTEST

    def is_due(self, now: float) -> bool:
        """Returns True when it is time to look again."""
        return now >= self._next

    def tick(self, now: float) -> None:
        """Looks for new connections when it is time to."""
        if not self.is_due(now):
            return
        there = {one.inode for one in connections()}
        new = there - self._known
        self._pause = _SHORTEST if new else min(self._pause * _LONGER, _LONGEST)
        self._next = now + self._pause
        self._known = there
        for pid, fd in owners(self._pids(), new).values() if new else ():
            with contextlib.suppress(OSError, AttributeError):
                _keep_alive(pid, fd)


def _keep_alive(pid: int, fd: int) -> None:
    """Switches keep-alives on for a socket of another process.

    Where the process has switched them on itself, they come more often, but end at the same time.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        copy = libc.syscall(_PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    try:
        end = socket.socket(fileno=copy)
    except OSError:  # a file, since the process has closed its connection
        os.close(copy)
        raise
    with end:
        most = _MOST
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, between, own = (end.getsockopt(socket.IPPROTO_TCP, each) for each in options)
            if idle <= _IDLE:
                return
            most = min(_MOST, max(1, (idle + between * own - _IDLE) // _BETWEEN))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, most)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
