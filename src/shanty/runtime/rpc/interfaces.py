"""The addresses of a machine, by getifaddrs(3): no program is needed that a bare host may lack."""

from __future__ import annotations

import ctypes
import socket
from typing import Any, Dict, Iterator, List, Optional

from shanty.runtime.platform import LINUX

_UP = 0x1
_LOOPBACK = 0x8
_RUNNING = 0x40


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
        name = one.name.decode(errors="replace")
        text = _text(one.address, name)
        if text is not None:
            yield {
                "interface": name,
                "address": text,
                "prefix": _bits(one.mask, _family(one.address)),
                "up": bool(one.flags & _UP and one.flags & _RUNNING),
                "loopback": bool(one.flags & _LOOPBACK),
            }
        entry = one.next


def _family(address: int) -> int:
    head = ctypes.string_at(address, 2)
    # BSD has the length of the structure in the first byte
    return int(ctypes.c_uint16.from_buffer_copy(head).value) if LINUX else head[1]


def _packed(address: int, family: int) -> bytes:
    if family == socket.AF_INET:
        return ctypes.string_at(address + 4, 4)
    return ctypes.string_at(address + 8, 16)


def _text(address: Optional[int], interface: str) -> Optional[str]:
    if not address:
        return None
    family = _family(address)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    packed = bytearray(_packed(address, family))
    zone = ""
    if family == socket.AF_INET6 and packed[0] == 0xFE and packed[1] & 0xC0 == 0x80:
        zone = "%" + interface
        packed[2:4] = b"\0\0"  # where BSD keeps the zone
    return socket.inet_ntop(family, bytes(packed)) + zone


def _bits(mask: Optional[int], family: int) -> int:
    if not mask:
        return 32 if family == socket.AF_INET else 128
    # BSD may leave out the family of a mask, so it is read as the address's.
    return bin(int.from_bytes(_packed(mask, family), "big")).count("1")
