"""Whether one host gets to another one's sshd: the verb `reach`."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

_EARLIER = 1.0  # seconds
_AT_ONCE = 32  # hosts that are tried at the same time
_PREAMBLE = 50  # lines that a server may send before its banner (RFC 4253, 4.2)


def reach(
    ask: Mapping[str, Any], _data: BinaryIO, _say: Callable[[Mapping[str, Any]], None]
) -> Dict[str, Any]:
    """Try `candidates`, `[[address, port], …]`, all at once, for `timeout` seconds.

    `found` is the first of them, in their order, that answers as an ssh server: `{"address",
    "port", "peer", "source", "banner"}`: `peer` and `source` are the two ends in numbers. None
    where none does. One that comes before a candidate that has answered has another second.
    `errors` says for each candidate why not, "" for one that answered.
    """
    return _reached(ask["candidates"], float(ask.get("timeout", 3.0)))


def reach_each(
    ask: Mapping[str, Any], _data: BinaryIO, _say: Callable[[Mapping[str, Any]], None]
) -> Dict[str, Any]:
    """`groups timeout`: `answers` has for each list of candidates what `reach` says of it."""
    groups, timeout = ask["groups"], float(ask["timeout"])
    with ThreadPoolExecutor(min(_AT_ONCE, len(groups)) or 1) as pool:
        return {"answers": list(pool.map(lambda group: _reached(group, timeout), groups))}


def _reached(places: Iterable[Sequence[Any]], timeout: float) -> Dict[str, Any]:
    candidates = [(str(address), int(port)) for address, port in places]
    results: List[Optional[Dict[str, Any]]] = [None] * len(candidates)
    errors: List[Optional[str]] = [None] * len(candidates)

    def attempt(index: int, place: Tuple[str, int]) -> None:
        try:
            results[index] = _knock(place, timeout)
            errors[index] = ""
        except socket.timeout:
            errors[index] = f"no answer within {timeout:g} s"
        except (OSError, ValueError) as error:
            errors[index] = str(getattr(error, "strerror", None) or error)

    threads = [
        threading.Thread(target=attempt, args=(index, place), daemon=True)
        for index, place in enumerate(candidates)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + timeout + 0.5  # a name server may be slower than that
    answered = False
    while time.monotonic() < until and any(thread.is_alive() for thread in threads):
        first = next((i for i, thread in enumerate(threads) if thread.is_alive()), 0)
        if any(results[:first]):
            break
        if not answered and any(results):
            answered = True
            until = min(until, time.monotonic() + _EARLIER)
        threads[first].join(0.02)
    found = next((result for result in results if result is not None), None)
    late = "not waited for" if found is not None else f"no answer within {timeout:g} s"
    return {"found": found, "errors": [late if error is None else error for error in errors]}


def _knock(place: Tuple[str, int], timeout: float) -> Dict[str, Any]:
    until = time.monotonic() + timeout
    with contextlib.closing(socket.create_connection(place, timeout)) as connection:
        heard = b""
        lines = 0
        while lines < _PREAMBLE:
            connection.settimeout(max(0.001, until - time.monotonic()))
            data = connection.recv(256)
            if not data:
                break
            heard += data
            while b"\n" in heard:
                line, _, heard = heard.partition(b"\n")
                lines += 1
                if line.startswith(b"SSH-"):
                    return {
                        "address": place[0],
                        "port": place[1],
                        "peer": connection.getpeername()[0],
                        "source": connection.getsockname()[0],
                        "banner": line.decode(errors="replace").strip(),
                    }
    raise ValueError("what listens there is no ssh server")
