"""What the kernel knows of each network interface: its speed, its kind, whether it carries."""

from __future__ import annotations

import os
from typing import Any, Dict

_FOLDER = "/sys/class/net"
_UP = 0x1


def links(folder: str = _FOLDER) -> Dict[str, Dict[str, Any]]:
    """Every interface by its name; none where the kernel is not Linux.

    `{"up", "speed", "mtu", "kind"}`: `up` is what the administrator wants, whether or not the
    link carries anything; `speed` is in Mbit/s, 0 where it is not known (virtual interfaces,
    radio); `kind` is "tun", "bridge", "wlan", "wireguard", "bond", "vlan" … or "".
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    return {
        name: _link(os.path.join(folder, name))
        for name in names
        if os.path.isdir(os.path.join(folder, name))
    }


def _link(path: str) -> Dict[str, Any]:
    speed = _number(_text(path, "speed"))
    return {
        "up": bool(int(_text(path, "flags") or "0", 16) & _UP),
        "speed": max(0, speed),
        "mtu": _number(_text(path, "mtu")),
        "kind": _kind(path),
    }


def _kind(path: str) -> str:
    if os.path.exists(os.path.join(path, "tun_flags")):
        return "tun"
    for line in _text(path, "uevent").splitlines():
        if line.startswith("DEVTYPE="):
            return line[len("DEVTYPE=") :]
    return "wlan" if os.path.isdir(os.path.join(path, "wireless")) else ""


def _text(path: str, name: str) -> str:
    try:
        with open(os.path.join(path, name), encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:  # the speed cannot be read while an interface is down
        return ""


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
