"""Turns a process into a host of a lab: with its own root, interfaces and sshd.

The root is assembled in memory. Most of it shows the files of the machine through bind mounts;
/tmp, /run, /dev/shm, /proc and the home of the user belong to the host. The code runs in the
first process of the host, whose namespaces are already new.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from shanty.launch.lab.model import Lab, LabHost

OWN = "/run/shanty-lab"  # where a host sees its own folder of the lab
_MACHINES_ETC = "/run/machine-etc"  # where a host sees the /etc of the machine
_FRESH = frozenset({"tmp", "run", "proc", "sys", "dev", "lost+found"})
# Folders of the system; a bare host sees no others of the machine.
_SYSTEM = frozenset(
    {"bin", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "sbin", "usr", "var"}
)
_CUSTOMARY = ("home", "mnt", "opt", "root", "srv")  # empty unless something is shown there
_PRIVATE_IN_VAR = {"tmp": "1777", "log": "755"}
_COMMAND_TIME = 20.0  # seconds that one call of ip or tc may take
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
# The files of /proc/PID/ns, in the order in which they have to be entered.
NAMESPACES = {
    "user": 0x10000000,
    "net": 0x40000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "mnt": 0x00020000,
}

_libc = ctypes.CDLL(None, use_errno=True)


def run_command(argv: Iterable[str], words: str = "") -> None:
    """Runs a program of the system with `words` as its standard input; OSError if it fails."""
    command = list(argv)
    done = subprocess.run(
        command, input=words, capture_output=True, text=True, check=False, timeout=_COMMAND_TIME
    )
    if done.returncode:
        raise OSError(1, f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def set_network(lines: Iterable[str]) -> None:
    """Executes commands of ip(8); OSError if one of them fails."""
    run_command(["ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def become(lab: Lab, member: LabHost) -> NoReturn:
    """Becomes the host `member`, and then its sshd; OSError if that fails."""
    _connect(lab, member)
    socket.sethostname(member.name)
    _make_root(lab, member)
    if lab.uid:
        # A user of a real host cannot change its network; sshd only needs port 22.
        drop_capabilities(keep=CAP_NET_BIND_SERVICE)
    _start_sshd(lab)


def _connect(lab: Lab, member: LabHost) -> None:
    lines = ["link set lo up"]
    for nic in lab.nics:
        lines.append(f"addr add {nic.address(member.number)}/24 dev {nic.name}")
        lines.append(f"link set {nic.name} up")
    set_network(lines)
    for nic in lab.nics:
        if nic.rate:
            words = f"qdisc add dev {nic.name} root tbf rate {nic.rate} burst 128kb latency 50ms"
            run_command(["tc", *words.split()])


def _make_root(lab: Lab, member: LabHost) -> None:
    root = lab.folder / "root"
    mount("none", "/", flags=PRIVATE | RECURSIVE)
    mount_memory(root)
    # Otherwise a tree that contains the folder of the lab would show the new root within itself.
    mount("none", root, flags=UNBINDABLE)
    top = Path(member.home).parts[1]
    for entry in sorted(Path("/").iterdir()):
        name = entry.name
        if name in (*_FRESH, "etc", top) or (lab.bare and name not in _SYSTEM):
            continue
        with contextlib.suppress(OSError) if name not in _SYSTEM else contextlib.nullcontext():
            _show(entry, root / name)
    _own_folders(root)
    _make_etc(root, lab.files(member) / "etc")
    home = root / member.home.lstrip("/")
    if not lab.bare and Path("/", top).is_dir():
        (root / top).mkdir()
        for entry in Path("/", top).iterdir():
            with contextlib.suppress(OSError):
                if entry.name != Path(member.home).parts[2]:
                    _show(entry, root / top / entry.name)
    for name in _CUSTOMARY:
        (root / name).mkdir(exist_ok=True)
    home.mkdir(parents=True)
    bind(lab.files(member) / "home", home)
    _python_and_mpi(lab, root, top)
    own = root / OWN.lstrip("/")
    own.mkdir()
    bind(lab.files(member), own)
    (root / ".old").mkdir()
    pivot_root(root, root / ".old")
    _checked(_libc.umount2(b"/.old", _DETACH), "umount /.old")  # when nothing uses it any more
    Path("/.old").rmdir()


def _show(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir()
        bind(source, target)
    elif source.is_file():
        target.touch()
        bind(source, target)


def _own_folders(root: Path) -> None:
    for name, mode in (("tmp", 0o1777), ("run", 0o755), ("run/sshd", 0o755), ("run/lock", 0o1777)):
        (root / name).mkdir()
        (root / name).chmod(mode)
    for name, kind in _PRIVATE_IN_VAR.items():
        folder = root / "var" / name
        if folder.is_dir() and not folder.is_symlink():
            mount_memory(folder, kind)
    with contextlib.suppress(OSError):
        (root / "var/log/lastlog").touch()  # sshd complains to the user when there is none
    _show(Path("/dev"), root / "dev")
    if (root / "dev/shm").is_dir():
        mount_memory(root / "dev/shm", "1777")
    if (root / "dev/pts").is_dir():
        options = "newinstance,ptmxmode=0666,mode=0620"
        mount("devpts", root / "dev/pts", "devpts", data=options)
    (root / "proc").mkdir()
    mount("proc", root / "proc", "proc")
    (root / "sys").mkdir()
    try:
        mount("sysfs", root / "sys", "sysfs")  # it shows the interfaces of this host
        bind("/sys/fs/cgroup", root / "sys/fs/cgroup")
    except OSError:  # some containers forbid a new one
        bind("/sys", root / "sys")


def _python_and_mpi(lab: Lab, root: Path, top: str) -> None:
    hidden = {f"/{name}" for name in _FRESH} | {f"/var/{name}" for name in _PRIVATE_IN_VAR}
    if lab.bare:
        hidden |= {str(each) for each in Path("/").iterdir() if each.name not in _SYSTEM}
        hidden.add(f"/{top}")
    for path in lab.shown:
        target = root / path.lstrip("/")
        if any(Path(path).is_relative_to(place) for place in hidden) and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _show(Path(path), target)
    for path in lab.emptied:
        if (root / path.lstrip("/")).is_dir():
            mount_memory(root / path.lstrip("/"))
    for path in lab.masked:
        if (root / path.lstrip("/")).exists():
            bind("/dev/null", root / path.lstrip("/"))


def _make_etc(root: Path, own: Path) -> None:
    """Makes the host's /etc: its own files, and links to the other ones of the machine.

    It is a folder of its own. When the machine replaces a file (useradd, apt), the kernel removes
    what is mounted over the old one, in all namespaces; a link shows the new one.
    """
    machines = root / _MACHINES_ETC.lstrip("/")
    machines.mkdir()
    bind("/etc", machines)
    etc = root / "etc"
    etc.mkdir()
    for entry in own.iterdir():
        (etc / entry.name).touch()
        bind(entry, etc / entry.name)
    for entry in Path("/etc").iterdir():
        place = etc / entry.name
        if place.exists():
            continue
        if entry.is_dir() and not entry.is_symlink():
            with contextlib.suppress(OSError):
                _show(entry, place)
        else:
            link = entry.readlink() if entry.is_symlink() else Path(_MACHINES_ETC, entry.name)
            place.symlink_to(link)


def _start_sshd(lab: Lab) -> NoReturn:
    os.setsid()
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(f"{OWN}/sshd.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    argv = [lab.sshd, "-D", "-e", "-f", f"{OWN}/sshd_config"]
    os.execve(lab.sshd, argv, {"PATH": lab.path, "LANG": "C.UTF-8"})


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(*kinds: str) -> None:
    """Moves this process to new namespaces of these kinds (for pids: its next child)."""
    _checked(_libc.unshare(sum(NAMESPACES[kind] for kind in kinds)), "unshare")


def enter(pid: int, kinds: tuple[str, ...]) -> None:
    """Enters these namespaces of a process; only children enter its pid namespace."""
    with contextlib.ExitStack() as stack:
        files = []
        for kind in kinds:  # all are opened first: afterwards /proc may be a different one
            path = Path(f"/proc/{pid}/ns/{kind}")
            if kind != "user" or not path.samefile(
                "/proc/self/ns/user"
            ):  # entering it is forbidden
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
    """Shows the file or tree `source`, with everything mounted in it, at `target` too."""
    mount(source, target, flags=BIND | RECURSIVE)


def mount_memory(target: str | Path, mode: str = "755") -> None:
    """Mounts an empty file system in memory at `target`."""
    mount("tmpfs", target, "tmpfs", _NOSUID | _NODEV, f"mode={mode}")


def pivot_root(new: Path, old: Path) -> None:
    """Makes the mount `new` the root; the old root is then at `old`, a folder below it."""
    _checked(_libc.pivot_root(os.fsencode(new), os.fsencode(old)), f"pivot_root {new}")


def keep_capabilities() -> None:
    """Passes the capabilities of this process to the programs it starts, without being root."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)  # 0 is this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: 32 of each, then the rest
    _checked(_libc.capget(header, sets), "capget")
    sets[2], sets[5] = sets[1], sets[4]
    _checked(_libc.capset(header, sets), "capset")
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability, 0, 0)


def drop_capabilities(keep: int) -> None:
    """Lets the programs that this process starts from now on have no capability but `keep`."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability != keep:
            _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_LOWER, capability, 0, 0)
