"""Facts of a host: the verb `survey`.

The addresses come from getifaddrs(3): a bare host may lack every program that shows them.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import os
import platform as python_platform
import shutil
import socket
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional

from shanty.runtime import platform
from shanty.runtime.gpus import gpus
from shanty.runtime.proc_files import read
from shanty.runtime.programs import output_of
from shanty.runtime.rpc import Ask, Data, Say
from shanty.runtime.rpc.capacity import room
from shanty.runtime.rundir import home, user_name

_SYSCTL_TIMEOUT = 5.0
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # flags of an interface


def survey(_ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """All facts of this host that a plan may need. Sizes are in bytes, times in seconds."""
    return {
        "hostname": socket.gethostname(),
        "instance": instance(),
        "boot": platform.boot_id(),
        "system": python_platform.system(),
        "arch": python_platform.machine(),
        "libc": list(python_platform.libc_ver()),
        "cores": platform.usable_cores(),
        "machine_cores": os.cpu_count() or 1,
        "limit": platform.limit_on_cores(),
        "memory": platform.usable_memory(),
        "gpus": gpus(),
        "fabrics": fabrics(),
        "addresses": addresses(),
        "links": links(),
        "ssh": ssh_connection(os.environ),
        "uid": os.getuid(),
        "user": user_name(os.getuid()),
        "home": os.path.expanduser("~"),
        "shanty_home": str(home(os.environ)),
        "room": room(os.environ),
        "ssh_program": shutil.which("ssh") or "",
        "time": time.time(),
        "path": os.environ.get("PATH", ""),
    }


def instance() -> str:
    """The same text for two names of one host, and another one after the host was restarted.

    Hosts that share a kernel (containers, a lab) count as several.
    """
    facts = [platform.boot_id(), platform.pid_namespace()]
    for name in ("net", "uts"):
        with contextlib.suppress(OSError):
            facts.append(os.readlink(f"/proc/self/ns/{name}"))
    machine = read("/etc/machine-id") or read("/var/lib/dbus/machine-id")
    facts += [machine.strip()] if machine else []
    if not any(facts):
        boot = output_of(["sysctl", "-n", "kern.bootsessionuuid"], _SYSCTL_TIMEOUT)
        facts = [socket.gethostname(), (boot or "").strip()]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def fabrics() -> List[str]:
    """The kinds of network here that beat TCP: InfiniBand and RoCE, Slingshot, Omni-Path."""
    return [kind for kind in ("infiniband", "cxi", "hfi1") if glob.glob(f"/sys/class/{kind}/*")]


def links(folder: str = "/sys/class/net") -> Dict[str, Dict[str, Any]]:
    """Every interface by its name; none where the kernel is not Linux.

    `{"up", "speed", "mtu", "kind"}`: `up` is what the administrator wants, whether or not the
    link carries anything; `speed` is in Mbit/s, 0 where it is not known (virtual interfaces,
    radio); `kind` is "tun", "bridge", "wlan", "wireguard", "bond", "vlan" … or "".
    """
    paths = {os.path.basename(path): path for path in sorted(glob.glob(f"{glob.escape(folder)}/*"))}
    return {
        name: {
            "up": bool(int(read(f"{path}/flags") or "0", 16) & _UP),
            "speed": max(0, _number(read(f"{path}/speed"))),
            "mtu": _number(read(f"{path}/mtu")),
            "kind": _kind(path),
        }
        for name, path in paths.items()
        if os.path.isdir(path)
    }


def _kind(path: str) -> str:
    if os.path.exists(os.path.join(path, "tun_flags")):
        return "tun"
    for line in read(f"{path}/uevent").splitlines():
        if line.startswith("DEVTYPE="):
            return line[len("DEVTYPE=") :]
    return "wlan" if os.path.isdir(os.path.join(path, "wireless")) else ""


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def ssh_connection(environ: Mapping[str, str]) -> Optional[Dict[str, Any]]:
    """Both ends of the connection that we came by, as the server sees them; None without ssh."""
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    ends = {"client": words[0], "client_port": int(words[1])}
    return {**ends, "server": words[2], "server_port": int(words[3])}


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
    return int(ctypes.c_uint16.from_buffer_copy(head).value) if platform.LINUX else head[1]


def _packed(address: int, family: int) -> bytes:
    offset, size = (4, 4) if family == socket.AF_INET else (8, 16)
    return ctypes.string_at(address + offset, size)
