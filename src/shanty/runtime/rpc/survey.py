"""Facts of a host: the verb `survey`."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import platform as python_platform
import pwd
import shutil
import socket
import time
from typing import Any, Dict, List, Mapping, Optional

from shanty.runtime import platform
from shanty.runtime.gpus import gpus
from shanty.runtime.rpc import Ask, Data, Say, output_of
from shanty.runtime.rpc.capacity import room
from shanty.runtime.rundir import home

_SYSCTL_TIMEOUT = 5.0
_IFF_UP = 0x1


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
        "memory": platform.usable_memory(),
        "gpus": gpus(),
        "fabrics": fabrics(),
        "addresses": _addresses(),
        "links": links(),
        "ssh": ssh_connection(os.environ),
        "uid": os.getuid(),
        "user": _user(),
        "home": os.path.expanduser("~"),
        "shanty_home": str(home(os.environ)),
        "room": room(os.environ),
        "ssh_program": shutil.which("ssh") or "",
        "time": time.time(),
        "path": os.environ.get("PATH", ""),
    }


def instance() -> str:
    """The same text for two names of one host, and another one after it was started anew.

    Hosts that share a kernel (containers, a lab) count as several.
    """
    facts = [platform.boot_id(), platform.pid_namespace()]
    for name in ("net", "uts"):
        with contextlib.suppress(OSError):
            facts.append(os.readlink(f"/proc/self/ns/{name}"))
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError), open(path) as file:
            facts.append(file.read().strip())
            break
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
            "up": bool(int(_text(path, "flags") or "0", 16) & _IFF_UP),
            "speed": max(0, _number(_text(path, "speed"))),
            "mtu": _number(_text(path, "mtu")),
            "kind": _kind(path),
        }
        for name, path in paths.items()
        if os.path.isdir(path)
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


def ssh_connection(environ: Mapping[str, str]) -> Optional[Dict[str, Any]]:
    """Both ends of the connection that we came by, as the server sees them; None without ssh."""
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    ends = {"client": words[0], "client_port": int(words[1])}
    return {**ends, "server": words[2], "server_port": int(words[3])}


def _addresses() -> List[Dict[str, Any]]:
    try:
        from shanty.runtime.rpc.interfaces import addresses

        return addresses()
    except (ImportError, AttributeError, OSError):  # a Python without ctypes
        return []


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
