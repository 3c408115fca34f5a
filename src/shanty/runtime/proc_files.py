"""Reads small files of the kernel, below /proc and /sys."""

from __future__ import annotations

from typing import Dict, Tuple

Counts = Tuple[int, int, int]  # bytes received, bytes sent, errors


def read(path: str) -> str:
    """Returns the text of a file; "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def links(root: str = "") -> Dict[str, Counts]:
    """Returns what each link of this host has carried, by its name; only tests have a `root`."""
    found = {}
    for line in read(f"{root}/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = [int(word) for word in rest.split()]
        if len(words) >= 16:
            found[name.strip()] = (words[0], words[8], words[2] + words[10] + words[14])
    return found


def tcp(root: str = "") -> Tuple[int, int]:
    """Returns the segments that this host's TCP has sent, and sent again."""
    lines = [line.split() for line in read(f"{root}/proc/net/snmp").splitlines()]
    rows = [words for words in lines if words[:1] == ["Tcp:"]]
    values = dict(zip(*rows)) if len(rows) == 2 else {}
    return int(values.get("OutSegs", 0)), int(values.get("RetransSegs", 0))


def mtu(name: str, root: str = "") -> int:
    """Returns the MTU of a link; 0 if it is not known."""
    text = read(f"{root}/sys/class/net/{name}/mtu").strip()
    return int(text) if text.isdigit() else 0


def memory(root: str = "") -> Dict[str, int]:
    """Returns the values of /proc/meminfo, in bytes."""
    found = {}
    for line in read(f"{root}/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) << 10
    return found
