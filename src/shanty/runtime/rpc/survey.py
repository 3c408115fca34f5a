"""What a host is: the verb `survey`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform as python_platform
import pwd
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Optional

from shanty.runtime import platform
from shanty.runtime.rpc.capacity import room
from shanty.runtime.rpc.links import links
from shanty.runtime.rundir import home

_GPU_TIMEOUT = 5.0  # seconds; a sick driver makes nvidia-smi hang


def survey(
    _ask: Mapping[str, Any], _data: BinaryIO, _say: Callable[[Mapping[str, Any]], None]
) -> Dict[str, Any]:
    """All facts of this host that a plan may need. Sizes are in bytes, times in seconds."""
    shanty_home = str(home(os.environ))
    return {
        "hostname": socket.gethostname(),
        "instance": instance(),
        "boot": platform.boot_id(),
        "system": python_platform.system(),
        "kernel": python_platform.release(),
        "arch": python_platform.machine(),
        "libc": list(python_platform.libc_ver()),
        "cores": platform.usable_cores(),
        "machine_cores": os.cpu_count() or 1,
        "memory": memory(),
        "gpus": gpus(),
        "fabrics": fabrics(),
        "addresses": _addresses(),
        "links": links(),
        "ssh": ssh_connection(os.environ),
        "uid": os.getuid(),
        "user": _user(),
        "shell": _shell(),
        "home": os.path.expanduser("~"),
        "shanty_home": shanty_home,
        "room": room(os.environ),
        "ssh_program": shutil.which("ssh") or "",
        "python": sys.executable,
        "python_version": python_platform.python_version(),
        "cache_tag": sys.implementation.cache_tag,
        "platform_tag": sysconfig.get_platform(),
        "time": time.time(),
        "utc_offset": time.localtime().tm_gmtoff,
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
        facts = [socket.gethostname(), _macos_boot()]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def memory() -> int:
    """The memory that this process may use: the machine's, cut down to its control group's."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/" + path) as file:
            total = min(total, int(file.read()))
    return total


def gpus() -> List[Dict[str, str]]:
    """NVIDIA's GPUs, `{"name", "uuid"}` each, in their order; none where nothing answers."""
    program = shutil.which("nvidia-smi") or "/usr/bin/nvidia-smi"
    try:
        done = subprocess.run(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GPU_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_gpus(done.stdout.decode(errors="replace")) if done.returncode == 0 else []


def fabrics() -> List[str]:
    """The kinds of network here that beat TCP: InfiniBand and RoCE, Slingshot, Omni-Path."""
    return [kind for kind in ("infiniband", "cxi", "hfi1") if _entries(f"/sys/class/{kind}")]


def _entries(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def parse_gpus(text: str) -> List[Dict[str, str]]:
    """What `nvidia-smi -L` prints; the parts of a divided GPU (MIG) are no GPUs of their own."""
    found = []
    for line in text.splitlines():
        if line.startswith("GPU "):
            name, _, rest = line.partition(": ")[2].rpartition(" (UUID: ")
            found.append({"name": name.strip(), "uuid": rest.rstrip(") ")})
    return found


def ssh_connection(environ: Mapping[str, str]) -> Optional[Dict[str, Any]]:
    """Both ends of the connection that we came by, as the server sees them; None without ssh."""
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    client, client_port, server, server_port = words
    return {
        "client": client,
        "client_port": int(client_port),
        "server": server,
        "server_port": int(server_port),
    }


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


def _shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return ""


def _macos_boot() -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["sysctl", "-n", "kern.bootsessionuuid"], stdout=subprocess.PIPE, check=False
        )
        return done.stdout.decode().strip()
    return ""
