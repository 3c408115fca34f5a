"""The addresses of a machine, by getifaddrs(3): no program is needed that a bare host may lack."""

from __future__ import annotations

import ctypes
import socket
from typing import Any, Dict, Iterator, List

from shanty.runtime.platform import LINUX

_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40


class _Entry(ctypes.Structure):
    """`struct ifaddrs`, the same on Linux and macOS."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("mask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def addresses() -> List[Dict[str, Any]]:
    """Every IPv4 and IPv6 address, in the system's order.

    `{"interface", "address", "prefix", "up", "loopback"}`; `prefix` is the length of the network's
    part in bits, `up` says that the link carries something. A link-local address has its zone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)):
        return []
    try:
        return list(_described(first))
    finally:
        libc.freeifaddrs(first)


def _described(entry: Any) -> Iterator[Dict[str, Any]]:
    while entry:
        one = entry.contents
        entry = one.next
        family = _family_of(one.address) if one.address else 0
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        name = one.name.decode(errors="replace")
        packed, zone = bytearray(_packed(one.address, family)), ""
        if family == socket.AF_INET6 and packed[0] == 0xFE and packed[1] & 0xC0 == 0x80:
            zone = "%" + name
            packed[2:4] = b"\0\0"  # where BSD keeps the zone
        # BSD may leave out the family of a mask, so it is read as the address's.
        mask = _packed(one.mask, family) if one.mask else b"\xff" * len(packed)
        yield {
            "interface": name,
            "address": socket.inet_ntop(family, bytes(packed)) + zone,
            "prefix": bin(int.from_bytes(mask, "big")).count("1"),
            "up": bool(one.flags & _UP and one.flags & _RUNNING),
            "loopback": bool(one.flags & _LOOPBACK),
        }


def _family_of(address: int) -> int:
    head = ctypes.string_at(address, 2)
    # BSD has the length of the structure in the first byte
    return int(ctypes.c_uint16.from_buffer_copy(head).value) if LINUX else head[1]


def _packed(address: int, family: int) -> bytes:
    offset, size = (4, 4) if family == socket.AF_INET else (8, 16)
    return ctypes.string_at(address + offset, size)
