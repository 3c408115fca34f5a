"""What two hosts say to each other when the network between them is tried.

A host that listens has a token of its own, 16 bytes that only those know who were told them over
ssh. Who connects sends it first, and what he wants: so nobody else is served. The answer can only
be made by someone who knows the token: so who connects knows which host has answered, and not a
stranger behind the same address. Then

    TRY     SIZE bytes there; one byte back, then SIZE bytes back. Small packets pass where large
            ones vanish (a black hole for the path's MTU), so both have to arrive.
    FLOOD   a few single bytes there and back, for the latency; then as much as goes through, for
            as long as was said. The receiver counts, and answers what it has counted.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from typing import Any, Callable, Mapping

from shanty.carry.errors import UsageError

HEAD = struct.Struct("!16scIdd")  # token, what is wanted, size, seconds, seconds not counted
RESULT = struct.Struct("!Qd")  # bytes, seconds
TRY, FLOOD = b"t", b"f"
TRIPS = 9  # round trips for a latency
BLOCK = 1 << 18
MOST_SECONDS = 5.0  # that a flood may take
SLACK = 5.0  # seconds beyond its time after which a conversation is over

Ask = Mapping[str, Any]
Say = Callable[[Mapping[str, Any]], None]


def token_of(text: str) -> bytes:
    """A token that is written in hexadecimal digits."""
    token = bytes.fromhex(text)
    if len(token) != 16:
        raise UsageError("a token has 16 bytes")
    return token


def answer_to(token: bytes) -> bytes:
    """The 16 bytes by which a host shows that it knows the token."""
    return hashlib.sha256(b"shanty" + token).digest()[:16]


def at_once(end: socket.socket) -> None:
    """Let small pieces go without waiting for more."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def family(address: str) -> int:
    """The family of an address in numbers."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
