"""What two hosts say to each other when the network between them is tried.

A host that listens has a token of its own, 16 bytes that only those know who were told them over
ssh, and that never goes over the network. Who connects says first what he wants, with 16 random
bytes and a proof that he knows the token; each such head is served once, so nobody else is served,
and no recording of it. The answer is a proof for just this head: so who connects knows which host
has answered, and not a stranger behind the same address. Both know only who is there; what follows
is not protected. Then

    TRY     SIZE bytes there; one byte back, then SIZE bytes back. Small packets pass where large
            ones vanish (a black hole for the path's MTU), so both have to arrive.
    FLOOD   a few single bytes there and back, for the latency; then as much as goes through, for
            as long as was said. The receiver counts, and answers what it has counted.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from typing import Any, Callable, Mapping

from shanty.runtime.errors import UsageError

HEAD = struct.Struct("!16scIdd16s")  # nonce, what is wanted, size, seconds, not counted, proof
PROOF = 16  # bytes of a proof
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


def head(token: bytes, wanted: bytes, size: int, seconds: float, skipped: float) -> bytes:
    """The first words of who connects; no two are alike."""
    words = HEAD.pack(os.urandom(16), wanted, size, seconds, skipped, bytes(PROOF))[:-PROOF]
    return words + _proof(token, b"asks", words)


def is_proven(token: bytes, words: bytes) -> bool:
    """True for a head by someone who knows the token."""
    return hmac.compare_digest(words[-PROOF:], _proof(token, b"asks", words[:-PROOF]))


def answer_to(token: bytes, words: bytes) -> bytes:
    """By which a host shows, to whom this head came from, that it knows the token."""
    return _proof(token, b"answers", words)


def _proof(token: bytes, side: bytes, words: bytes) -> bytes:
    return hmac.new(token, side + words, "sha256").digest()[:PROOF]


def at_once(end: socket.socket) -> None:
    """Let small pieces go without waiting for more."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def family(address: str) -> int:
    """The family of an address in numbers."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
