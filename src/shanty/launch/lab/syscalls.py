"""Wraps the Linux system calls of a lab for which Python has no function.

Every function raises the OSError of its call. Numbers are those of the kernel's headers
(sched.h, mount.h, prctl.h, capability.h), the same on all architectures; pivot_root has none
in libc, so its number is looked up by machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from pathlib import Path

BIND = 0x1000
RECURSIVE = 0x4000
PRIVATE = 0x40000
UNBINDABLE = 0x20000
_NOSUID, _NODEV = 0x2, 0x4
_DETACH = 0x2

_PR_CAP_AMBIENT = 47
_AMBIENT_RAISE, _AMBIENT_LOWER = 2, 3
_CAPABILITIES_VERSION = 0x20080522
CAP_NET_BIND_SERVICE = 10
_LAST_CAPABILITY = 63  # the kernel refuses those that it does not have

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

# A file of /proc/PID/ns each, in the order in which they have to be entered.
NAMESPACES = {
    "user": 0x10000000,
    "net": 0x40000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "mnt": 0x00020000,
}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(*kinds: str) -> None:
    """Leaves the namespaces of these kinds for new ones (pids: the next child does)."""
    _checked(_libc.unshare(sum(NAMESPACES[kind] for kind in kinds)), "unshare")


def enter(pid: int, kinds: tuple[str, ...]) -> None:
    """Enters these namespaces of a process; a child is the first that is in its pid namespace."""
    with contextlib.ExitStack() as stack:
        files = []
        for kind in kinds:  # all opened first: afterwards /proc may be another
            path = Path(f"/proc/{pid}/ns/{kind}")
            if kind != "user" or not path.samefile("/proc/self/ns/user"):  # that is forbidden
                files.append((kind, stack.enter_context(path.open("rb"))))
        for kind, file in files:
            _checked(_libc.setns(file.fileno(), NAMESPACES[kind]), f"setns {kind}")


def mount(
    source: str | Path, target: str | Path, kind: str = "none", flags: int = 0, data: str = ""
) -> None:
    """Calls mount(2)."""
    words = (os.fsencode(source), os.fsencode(target), kind.encode())
    result = _libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    _checked(result, f"mount {target}")


def bind(source: str | Path, target: str | Path) -> None:
    """Shows the file or tree `source`, with all that is mounted in it, at `target` too."""
    mount(source, target, flags=BIND | RECURSIVE)


def mount_memory(target: str | Path, mode: str = "755") -> None:
    """Mounts an empty file system in memory at `target`."""
    mount("tmpfs", target, "tmpfs", _NOSUID | _NODEV, f"mode={mode}")


def pivot_root(new: Path, old: Path) -> None:
    """Makes the mount `new` the root; the old one is at `old`, a folder beneath it, afterwards."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(38, f"pivot_root: not known for {platform.machine()}")
    result = _libc.syscall(ctypes.c_long(number), os.fsencode(new), os.fsencode(old))
    _checked(result, f"pivot_root {new}")


def detach(target: str) -> None:
    """Unmounts `target` with all in it, as soon as nobody uses it."""
    _checked(_libc.umount2(os.fsencode(target), _DETACH), f"umount {target}")


def keep_capabilities() -> None:
    """Passes this process's capabilities to the programs it starts, though it is not root."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)  # 0 is this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: 32 of each, then the rest
    _checked(_libc.capget(header, sets), "capget")
    sets[2], sets[5] = sets[1], sets[4]
    _checked(_libc.capset(header, sets), "capset")
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability, 0, 0)


def drop_capabilities(keep: int) -> None:
    """Passes no capability but `keep` to the programs that this process starts from now on."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability != keep:
            _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_LOWER, capability, 0, 0)
