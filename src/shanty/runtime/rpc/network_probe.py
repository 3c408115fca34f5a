"""Tries the networks to other hosts that listen: the verbs `net-probe`, `net-send`."""

from __future__ import annotations

import errno
import hmac
import os
import socket
import struct
import time
from typing import Any, BinaryIO, Callable, Dict, Generator, List, Mapping, Tuple

from shanty.runtime.rpc import probe_protocol
from shanty.runtime.rpc.probe_protocol import Ask, Say
from shanty.runtime.rpc.socket_loop import WRITE, Sockets, Talk, Wait, receive, send

_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: what has not been sent yet is thrown away


def net_probe(ask: Ask, _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """Try `targets`, `[{"address", "port", "token", "source"}, …]`, all at once.

    `source` is the own address to come from, "" for the system's choice. `timeout` bounds the
    connection, and again the bytes, `size` (64 KiB) each way. Returns `{"results": [{"kind",
    "text", "via", "seconds"}, …]}` in their order. `via` is the own address from which the system
    itself would go there, `seconds` what the bytes took. Kinds: "ok"; "no-answer", "refused",
    "unreachable": there is no connection; "silent": there is one, but not even the greeting
    comes; "wrong-host": another one answers; "large-lost", "large-lost-back": small packets
    pass, large ones vanish on the way there, or back; "error": the own host cannot even try.
    """
    timeout = float(ask.get("timeout", 2.0))
    size = int(ask.get("size", 1 << 16))
    results: List[Dict[str, Any]] = [
        {"kind": "error", "text": "", "seconds": 0.0} for _ in ask["targets"]
    ]
    sockets = Sockets()
    for target, result in zip(ask["targets"], results):
        result["via"] = _way(target)
        sockets.add(_try(target, result, size, timeout))
    sockets.run()
    sockets.close()
    return {"results": results}


def net_send(ask: Ask, _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """Send to `targets` (as for `net-probe`) as fast as it goes, to all at the same time.

    It takes `seconds` of which the first `skipped` do not count, since TCP starts slowly.
    Returns `{"results": [{"kind", "text", "rate", "latency"}, …]}`: bytes/s as the receiver
    counted, and half a round trip of one byte in seconds, the median of a few, before the flood.
    """
    seconds = float(ask.get("seconds", 0.25))
    skipped = float(ask.get("skipped", seconds / 5))
    results: List[Dict[str, Any]] = [
        {"kind": "error", "text": "", "rate": 0.0, "latency": 0.0} for _ in ask["targets"]
    ]
    sockets = Sockets()
    for target, result in zip(ask["targets"], results):
        sockets.add(_flood(target, result, seconds, skipped))
    sockets.run()
    sockets.close()
    return {"results": results}


def _try(target: Mapping[str, Any], result: Dict[str, Any], size: int, timeout: float) -> Talk:
    def work(end: socket.socket) -> Talk:
        began = time.monotonic()
        until = began + timeout
        result["kind"] = "large-lost"
        yield from send(end, bytes(size), until)
        yield from receive(end, 1, until)
        result["kind"] = "large-lost-back"
        yield from receive(end, size, max(until, time.monotonic() + timeout / 2))
        result["kind"] = "ok"
        result["seconds"] = time.monotonic() - began

    head = probe_protocol.head(
        probe_protocol.token_of(target["token"]),
        probe_protocol.TRY,
        size,
        probe_protocol.MOST_SECONDS,
        0.0,
    )
    return _talk(target, result, head, timeout, work)


def _flood(
    target: Mapping[str, Any], result: Dict[str, Any], seconds: float, skipped: float
) -> Talk:
    def work(end: socket.socket) -> Talk:
        until = time.monotonic() + seconds + probe_protocol.SLACK
        trips = []
        for _ in range(probe_protocol.TRIPS):
            began = time.monotonic()
            yield from send(end, b"x", until)
            yield from receive(end, 1, until)
            trips.append(time.monotonic() - began)
        result["latency"] = sorted(trips)[len(trips) // 2] / 2
        result["kind"] = "large-lost"
        answer = yield from _pour(end, until)
        total, lasted = probe_protocol.RESULT.unpack(answer)
        result["rate"] = total / lasted if lasted > 0 else 0.0
        result["kind"] = "ok"

    head = probe_protocol.head(
        probe_protocol.token_of(target["token"]), probe_protocol.FLOOD, 0, seconds, skipped
    )
    return _talk(target, result, head, 2.0, work)


def _pour(end: socket.socket, until: float) -> Generator[Wait, None, bytes]:
    """Write until the receiver answers, which it does when its time is over."""
    block = memoryview(bytes(probe_protocol.BLOCK))
    answer = b""
    while len(answer) < probe_protocol.RESULT.size and time.monotonic() < until:
        try:
            yield end, WRITE, time.monotonic() + 0.05  # a full buffer must not hide the answer
            end.send(block)
        except (BlockingIOError, socket.timeout):
            pass
        try:
            piece = end.recv(probe_protocol.RESULT.size - len(answer))
        except BlockingIOError:
            continue
        if not piece:
            raise ConnectionResetError("closed")
        answer += piece
    if len(answer) < probe_protocol.RESULT.size:
        raise socket.timeout
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    return answer


def _talk(
    target: Mapping[str, Any],
    result: Dict[str, Any],
    head: bytes,
    timeout: float,
    work: Callable[[socket.socket], Talk],
) -> Talk:
    """Connect, prove who we are and hear who answers, then `work`; `result` says how far it got."""
    until = time.monotonic() + timeout
    address = str(target["address"])
    with socket.socket(probe_protocol.family(address), socket.SOCK_STREAM) as end:
        end.setblocking(False)
        try:
            probe_protocol.at_once(end)
            if target.get("source"):
                end.bind((target["source"], 0))
            result["kind"] = "no-answer"
            yield from _connected(end, (address, int(target["port"])), until)
            result["kind"] = "silent"
            yield from send(end, head, until)
            try:
                late = max(until, time.monotonic() + timeout / 2)
                heard = yield from receive(end, probe_protocol.PROOF, late)
            except ConnectionError:
                heard = b""
            expected = probe_protocol.answer_to(probe_protocol.token_of(target["token"]), head)
            if not hmac.compare_digest(heard, expected):
                result["kind"] = "wrong-host"
                return
            yield from work(end)
        except socket.timeout:  # what has not arrived must not load the wire any longer
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        except OSError as error:
            result["text"] = error.strerror or str(error)
            if result["kind"] == "no-answer":
                result["kind"] = _kind(error)


def _connected(end: socket.socket, place: Tuple[str, int], until: float) -> Talk:
    try:
        end.connect(place)
    except BlockingIOError:
        yield end, WRITE, until
        code = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code)) from None


def _kind(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "refused"
    if error.errno == errno.ETIMEDOUT:
        return "no-answer"
    return "unreachable"


def _way(target: Mapping[str, Any]) -> str:
    """The own address from which the system goes to a target; no packet is sent for it."""
    try:
        with socket.socket(probe_protocol.family(target["address"]), socket.SOCK_DGRAM) as end:
            end.connect((target["address"], int(target["port"])))
            return str(end.getsockname()[0])
    except OSError:
        return ""
