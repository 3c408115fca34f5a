"""Turns a process into a host of a lab: a root of its own, its interfaces, its sshd.

The root is put together in memory. Most of it is the machine's, seen through bind mounts; /tmp,
/run, /dev/shm, /proc and the home of the user are the host's own. It runs in the process that
is to be the host's first, in namespaces that are new already.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from shanty.launch.lab import syscalls
from shanty.launch.lab.model import Lab, LabHost

OWN = "/run/shanty-lab"  # where a host sees its own folder of the lab
_FRESH = frozenset({"tmp", "run", "proc", "sys", "dev", "lost+found"})
# What belongs to the system; a bare host has nothing else of the machine.
_SYSTEM = frozenset(
    {"bin", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "sbin", "usr", "var"}
)
_CUSTOMARY = ("home", "mnt", "opt", "root", "srv")  # empty where nothing else is there
_PRIVATE_IN_VAR = {"tmp": "1777", "log": "755"}
_COMMAND_TIME = 20.0  # seconds that one call of ip or tc may take


def run_command(argv: Iterable[str], words: str = "") -> None:
    """Runs a program of the system, `words` on its standard input; OSError when it fails."""
    command = list(argv)
    done = subprocess.run(
        command, input=words, capture_output=True, text=True, check=False, timeout=_COMMAND_TIME
    )
    if done.returncode:
        raise OSError(1, f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def set_network(lines: Iterable[str]) -> None:
    """Does what the lines say in the words of ip(8); OSError when one of them fails."""
    run_command(["ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def become(lab: Lab, member: LabHost) -> NoReturn:
    """Becomes the host `member`, and then its sshd; OSError when that cannot be done."""
    _connect(lab, member)
    socket.sethostname(member.name)
    _make_root(lab, member)
    _own_files()
    if lab.uid:
        # A login on a real host has no power over its network; port 22 is all that sshd needs.
        syscalls.drop_capabilities(keep=syscalls.CAP_NET_BIND_SERVICE)
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
    syscalls.mount("none", "/", flags=syscalls.PRIVATE | syscalls.RECURSIVE)
    syscalls.mount_memory(root)
    # Else a tree that has the lab's folder in it would show the new root within itself.
    syscalls.mount("none", root, flags=syscalls.UNBINDABLE)
    top = Path(member.home).parts[1]
    for entry in sorted(Path("/").iterdir()):
        name = entry.name
        if name in _FRESH or name == top or (lab.bare and name not in _SYSTEM):
            continue
        with contextlib.suppress(OSError) if name not in _SYSTEM else contextlib.nullcontext():
            _show(entry, root / name)
    _own_folders(root)
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
    syscalls.bind(lab.files(member) / "home", home)
    _python_and_mpi(lab, root, top)
    own = root / OWN.lstrip("/")
    own.mkdir()
    syscalls.bind(lab.files(member), own)
    (root / ".old").mkdir()
    syscalls.pivot_root(root, root / ".old")
    syscalls.detach("/.old")
    Path("/.old").rmdir()


def _show(source: Path, target: Path) -> None:
    """Shows `source` at `target`, which does not exist yet."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir()
        syscalls.bind(source, target)
    elif source.is_file():
        target.touch()
        syscalls.bind(source, target)


def _own_folders(root: Path) -> None:
    for name, mode in (("tmp", 0o1777), ("run", 0o755), ("run/sshd", 0o755), ("run/lock", 0o1777)):
        (root / name).mkdir()
        (root / name).chmod(mode)
    for name, kind in _PRIVATE_IN_VAR.items():
        folder = root / "var" / name
        if folder.is_dir() and not folder.is_symlink():
            syscalls.mount_memory(folder, kind)
    with contextlib.suppress(OSError):
        (root / "var/log/lastlog").touch()  # sshd complains to the user when there is none
    _show(Path("/dev"), root / "dev")
    if (root / "dev/shm").is_dir():
        syscalls.mount_memory(root / "dev/shm", "1777")
    if (root / "dev/pts").is_dir():
        options = "newinstance,ptmxmode=0666,mode=0620"
        syscalls.mount("devpts", root / "dev/pts", "devpts", data=options)
    (root / "proc").mkdir()
    syscalls.mount("proc", root / "proc", "proc")
    (root / "sys").mkdir()
    try:
        syscalls.mount("sysfs", root / "sys", "sysfs")  # it tells this host's interfaces
        syscalls.bind("/sys/fs/cgroup", root / "sys/fs/cgroup")
    except OSError:  # some containers forbid a new one
        syscalls.bind("/sys", root / "sys")


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
            syscalls.mount_memory(root / path.lstrip("/"))
    for path in lab.masked:
        if (root / path.lstrip("/")).exists():
            syscalls.bind("/dev/null", root / path.lstrip("/"))


def _own_files() -> None:
    for entry in Path(OWN, "etc").iterdir():
        target = Path("/etc", entry.name).resolve()
        if not target.exists() and target.is_relative_to("/run"):
            target.parent.mkdir(parents=True, exist_ok=True)  # what systemd would have put there
            target.touch()
        if target.exists():
            syscalls.bind(entry, target)


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
