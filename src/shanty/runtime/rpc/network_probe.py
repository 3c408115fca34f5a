"""The verbs `net-listen`, `net-probe`, `net-send`, `net-close`, for `runtime/network_probe.py`."""

from __future__ import annotations

from typing import Any, Dict, Optional

from shanty.runtime.network_probe import Listener, flood, listen, probe, token_of
from shanty.runtime.rpc import Ask, Data, Say

_listener: Optional[Listener] = None  # of this server


def net_listen(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Listen at each of `addresses` for who has `token` (hexadecimal, 16 bytes).

    The system chooses the ports, or they are the first free ones of `ports`, `[first, last]`.
    Ends with `net-close`, another `net-listen`, the server, or `idle` seconds without a guest.
    Returns `{"ports": {address: port}, "errors": {address: text}}`.
    """
    global _listener
    token = token_of(ask["token"])
    net_close({}, data, say)
    idle = float(ask.get("idle", 60.0))
    _listener, ports, errors = listen(ask["addresses"], token, ask.get("ports"), idle)
    return {"ports": ports, "errors": errors}


def net_close(_ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """End what `net-listen` began."""
    global _listener
    if _listener is not None:
        _listener.close()
        _listener = None
    return {}


def net_probe(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """Try `targets` for `timeout` seconds; returns `{"results": …}` as `probe` tells them."""
    timeout, size = float(ask.get("timeout", 2.0)), int(ask.get("size", 1 << 16))
    return {"results": probe(ask["targets"], timeout, size)}


def net_send(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """Send to `targets` as fast as it goes; returns `{"results": …}` as `flood` tells them."""
    seconds = float(ask.get("seconds", 0.25))
    skipped = float(ask.get("skipped", seconds / 5))
    return {"results": flood(ask["targets"], seconds, skipped)}
