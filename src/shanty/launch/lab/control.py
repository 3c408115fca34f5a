"""Makes, finds, controls and ends labs; explains what this machine lacks for a lab."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from shanty.launch import inventory
from shanty.launch.lab import files, machine, model
from shanty.launch.lab.model import Lab, LabHost
from shanty.launch.lab.supervisor import port_name
from shanty.launch.lock import exclusive_lock
from shanty.launch.package import FOLDER
from shanty.launch.plain_json import decode
from shanty.runtime import platform, site
from shanty.runtime.errors import LostError, NotFoundError, PrepareError, UsageError
from shanty.runtime.platform import Process
from shanty.runtime.run_status import conclude, read_status
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.site import Host
from shanty.runtime.spec import Failure, State

_REBOOT_TIME = 40.0
_FREEZE_TIME = 10.0
_PAUSE = 0.02
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as shells have it
_END_TIME = 10.0  # seconds for a killed lab to end
_PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"  # not on every user's PATH
# A kernel setting, the value that forbids a lab, and the value that allows it.
_SETTINGS = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)


def folder_of(home: Path, name: str) -> Path:
    """Returns the folder of a lab."""
    return home / "lab" / name


def labs(home: Path) -> list[Lab]:
    """Returns all labs, including those whose processes are gone."""
    names = sorted(path.parent.name for path in (home / "lab").glob("*/lab.json"))
    return [lab for name in names if (lab := read(home, name)) is not None]


def read(home: Path, name: str) -> Lab | None:
    """Returns the lab of that name, if its files can be read."""
    folder = folder_of(home, name)
    value, state = read_json(folder / "lab.json"), read_json(folder / "state.json")
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        lab: Lab = decode(Lab, {**(value or {}), **(state or {})})
        return lab
    return None


def find(home: Path, name: str) -> Lab:
    """Returns the lab of that name; NotFoundError if it does not exist."""
    lab = read(home, name)
    if lab is not None:
        return lab
    fix = "shanty lab up 3" + ("" if name == "lab" else f" --name {name}")
    names = ", ".join(lab.name for lab in labs(home))
    raise NotFoundError(f"lab not found: {name}", fix=f"the labs are: {names}" if names else fix)


def find_host(home: Path, name: str) -> tuple[Lab, LabHost]:
    """Returns the host of that name and its lab; NotFoundError if no running lab has it."""
    for lab, member in ((each, member) for each in labs(home) for member in each.hosts):
        if member.name == name and not lab.alive:
            raise NotFoundError(
                f"{name} is gone",
                f"the processes of the lab {lab.name} have ended (a restart?)",
                f"shanty lab up {len(lab.hosts)} --name {lab.name}",
            )
        if member.name == name:
            return lab, member
    raise NotFoundError(f"lab host not found: {name}", fix="shanty lab list shows all hosts")


def up(
    home: Path,
    name: str,
    count: int,
    nics: Sequence[str],
    rates: Sequence[str],
    slots: int | None,
    progress: Callable[[int], None],
    *,
    bare: bool,
    shared_home: bool = False,
) -> Lab:
    """Makes a lab and waits until all its hosts answer; calls `progress` with how many do.

    `nics` are the interfaces besides eth0, `rates` are NIC=RATE; without `slots` a host has a slot
    for each core. UsageError when the lab is already running or a value is invalid, PrepareError
    when a lab is impossible on this machine. Neither leaves anything behind.
    """
    model.check_name(name)
    if slots is not None and slots < 1:
        raise UsageError(f"--slots must be 1 or more, not {slots}")
    hosts = model.make_hosts(name, count, shared_home=shared_home)
    model.make_nics(nics, rates, 0)
    found = programs(_PACKAGES)
    with _locked(home, name):
        known = read(home, name)
        if known and known.alive:
            raise UsageError(
                f"the lab {name} is already running",
                fix=f"shanty lab down {name}, or use another --name for a second lab",
            )
        group_file = read_json(home / "hosts" / f"{name}.json")
        if group_file is not None and not group_file.get("lab"):
            raise UsageError(f"{name} is the name of a group of hosts", fix="use another --name")
        _remove(home, name)  # files of a lab that is gone
        second = model.free_network(labs(home))
        uid, gid = os.getuid(), os.getgid()
        lab = Lab(
            name=name,
            folder=folder_of(home, name),
            user=files.login(uid)[0],
            uid=uid,
            gid=gid,
            bare=bare,
            nics=model.make_nics(nics, rates, second),
            hosts=hosts,
            sshd=found["sshd"],
            python=files.python_of_system(),
            shown=files.python_folders(packages=not bare),
            emptied=files.emptied_folders(found["sshd"]) if bare else (),
            masked=files.masked_files() if bare else (),
            path="/usr/local/bin:/usr/bin:/bin" + ("" if uid else ":/usr/sbin:/sbin"),
        )
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, home, name)
            with storage_errors(lab.folder):
                lab.folder.mkdir(parents=True, mode=0o700)
            files.write(lab, found["ssh-keygen"])
            entry = _start(lab, found["unshare"], undo, progress)
            lab = replace(lab, pid=entry.pid, born=entry.born)
            files.write_ssh_config(lab)
            config = str(lab.folder / "ssh_config")
            group = tuple(Host(m.name, slots=slots, config=config) for m in lab.hosts)
            inventory.save(inventory.Group(name, group, lab=True), home)
            with storage_errors(lab.folder):
                write_json(lab.folder / "state.json", {"pid": lab.pid, "born": lab.born})
            undo.pop_all()
    return lab


def _locked(home: Path, name: str) -> AbstractContextManager[None]:
    refusal = UsageError(
        f"another command is making or ending the lab {name} right now",
        fix="wait for it, or use another --name",
    )
    return exclusive_lock(home / "lab" / f".{name}.lock", refusal)


def _start(
    lab: Lab, unshare: str, undo: contextlib.ExitStack, progress: Callable[[int], None]
) -> Process:
    """Starts the process of the lab, which outlives this one; returns it once all hosts answer."""
    words = [unshare, "--net", "--mount", "--pid", "--fork", "--kill-child"]
    if lab.uid:
        words += ["--map-current-user", "--keep-caps"]
    words += ["--", sys.executable, "-P", "-m", "shanty.launch.lab.supervisor", str(lab.folder)]
    source = str(FOLDER.parent)
    env = {**os.environ, "PYTHONPATH": source, "PATH": _search_path()}
    log = lab.folder / "switch.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",  # it changes its root
            env=env,
            start_new_session=True,
        )
    undo.callback(process.wait)
    undo.callback(process.kill)  # which kills the lab, by --kill-child
    assert process.stdout is not None
    ready = 0
    with process.stdout as output:
        for line in output:
            report = json.loads(line)
            if "done" in report:
                (child,) = (e for e in platform.processes().values() if e.parent == process.pid)
                return child
            if "error" in report:
                raise forbidden(report["error"], report["errno"])
            ready += 1
            progress(ready)
    text = log.read_text(errors="replace").strip()
    raise forbidden(text.splitlines()[-1] if text else "its process ended silently", None)


def down(home: Path, name: str) -> list[str]:
    """Ends a lab and removes its files; returns the runs that were active on it.

    NotFoundError if nothing of it exists.
    """
    folder = folder_of(home, name)
    if not folder.exists():
        find(home, name)
    with _locked(home, name):
        lab = read(home, name)
        if lab and lab.alive and not _kill(lab.pid, lab.born):
            raise PrepareError(
                f"the lab {name} does not end",
                f"process {lab.pid} still exists {_END_TIME:.0f} s after SIGKILL",
                "look for a process in state D (a disk or an NFS server that hangs)",
            )
        lost = _lose_runs(home, name)
        _remove(home, name)
        return lost


def _lose_runs(home: Path, name: str) -> list[str]:
    """Marks the runs on an ended lab as lost: their hosts can never be asked again."""
    config, lost = str(folder_of(home, name) / "ssh_config"), []
    failure = Failure(f"the lab {name} was ended during the run", fix="run it again")
    for folder in sorted((home / "runs").glob("*")):
        run = RunDir(folder)
        where = site.read(run)
        there = where is not None and any(host.config == config for host in where.hosts)
        if there and not read_status(run).state.final:
            conclude(run, State.LOST, failure, LostError.exit_code)
            lost.append(run.id)
    return lost


def _kill(pid: int, born: str) -> bool:
    """Ends the first process of a pid namespace, and so all in it; False if it does not end."""
    with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid), "rb") as watch:
        if platform.is_alive(pid, born):
            signal.pidfd_send_signal(watch.fileno(), signal.SIGKILL)
            return bool(select.select([watch], [], [], _END_TIME)[0])
    return True


def _remove(home: Path, name: str) -> None:
    group = home / "hosts" / f"{name}.json"
    if (read_json(group) or {}).get("lab"):
        group.unlink(missing_ok=True)
    folder = folder_of(home, name)
    if folder.exists():
        with storage_errors(folder):
            for path, names, _files in os.walk(folder):
                for inner in (Path(path, name) for name in names):
                    if not inner.is_symlink():
                        inner.chmod(0o700)  # rmtree cannot empty a read-only folder
            shutil.rmtree(folder)


# ---------------------------------------------------------------------- the hosts of a lab


def _noted(lab: Lab) -> dict[str, tuple[int, bool]]:
    """Returns the inner pid of each host's first process, and whether its sshd has answered."""
    noted = read_json(lab.folder / "pids.json") or {"hosts": {}}
    hosts: dict[str, tuple[int, bool]] = noted["hosts"]
    return hosts


def first_processes(lab: Lab) -> dict[str, int]:
    """Returns the pid, as seen here, of every host's first process."""
    names = {pid: name for name, (pid, _up) in _noted(lab).items() if pid}
    found = {}
    for entry in platform.processes().values():
        if entry.parent == lab.pid:
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{entry.pid}/status").read_text(errors="replace")
                pids = status.partition("\nNSpid:")[2].partition("\n")[0].split()
                if len(pids) > 1 and int(pids[-2]) in names:  # as the lab's namespace has it
                    found[names[int(pids[-2])]] = entry.pid
    return found


def states(lab: Lab) -> dict[str, str]:
    """Returns the state of every host: up, cut, frozen, starting, or gone."""
    if not lab.alive:
        return {member.name: "gone" for member in lab.hosts}
    noted = _noted(lab)
    pids = first_processes(lab)
    found = {}
    for member in lab.hosts:
        entry = platform.process(pids.get(member.name, 0))
        inner, answers = noted.get(member.name, (0, False))
        if entry is None:
            state = "starting" if inner else "gone"
        elif entry.state == "T":
            state = "frozen"
        elif (lab.files(member) / "cut").exists():
            state = "cut"
        else:
            state = "up" if answers else "starting"
        found[member.name] = state
    return found


def _first_process(lab: Lab, member: LabHost) -> int:
    pid = first_processes(lab).get(member.name)
    if pid is None:
        raise NotFoundError(
            f"{member.name} is not running",
            "it is just starting, or its restart failed",
            f"see {lab.folder / 'switch.log'} and {lab.files(member) / 'sshd.log'}",
        )
    return pid


def execute(lab: Lab, member: LabHost, argv: Sequence[str]) -> int:
    """Runs a command on the console of a host, with our standard streams; returns its exit code.

    It needs no network, and may change the network of the host. The calling process stays in the
    host's namespaces.
    """
    pid = _first_process(lab, member)
    env = {
        "HOME": member.home,
        "USER": lab.user,
        "LOGNAME": lab.user,
        "SHELL": "/bin/sh",
        "PATH": files.host_path(lab) + ("" if not lab.uid else ":/usr/sbin:/sbin"),
        **{key: os.environ[key] for key in ("TERM", "LANG") if key in os.environ},
    }
    machine.enter(pid, tuple(machine.NAMESPACES))
    machine.keep_capabilities()
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(list(argv), cwd=member.home, env=env)
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        failure = UsageError(
            f"{argv[0]} cannot be run on {member.name}", error.strerror or str(error)
        )
        failure.exit_code = _NOT_FOUND if absent else _NOT_EXECUTABLE
        raise failure from error

    for each in early:
        process.send_signal(each)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command as well
    code = process.wait()
    return code if code >= 0 else 128 - code


def cut(lab: Lab, member: LabHost) -> None:
    """Pulls the cables of a host: packets from and to it are dropped silently."""
    (lab.files(member) / "cut").touch()
    _set_links(lab, member, "down")


def join(lab: Lab, member: LabHost) -> None:
    """Plugs the cables of a host in again."""
    (lab.files(member) / "cut").unlink(missing_ok=True)
    _set_links(lab, member, "up")


def _set_links(lab: Lab, member: LabHost, state: str) -> None:
    ports = [port_name(member.number, number) for number in range(len(lab.nics))]
    child = os.fork()
    if child == 0:  # a process cannot leave the network of the supervisor again, so it is a new one
        code = 1
        try:
            machine.enter(lab.pid, ("user", "net"))
            machine.keep_capabilities()
            machine.set_network(f"link set {port} {state}" for port in ports)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise PrepareError(f"the links of {member.name} could not be set {state}")


def _processes(first: int) -> list[Process]:
    space = _pid_space(first)
    tree = {entry.pid for entry in platform.descendants(first)}
    every = platform.processes().values()
    return [each for each in every if each.pid in tree or _pid_space(each.pid) == space]


def _pid_space(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return f"of {pid}, which is gone or not ours"


def freeze(lab: Lab, member: LabHost) -> int:
    """Stops every process of a host, its sshd included; returns how many there are."""
    return _signal_all(lab, member, signal.SIGSTOP, "T")


def thaw(lab: Lab, member: LabHost) -> int:
    """Continues every process of a host; returns how many there are."""
    return _signal_all(lab, member, signal.SIGCONT, "RSDI")


def _signal_all(lab: Lab, member: LabHost, number: signal.Signals, wanted: str) -> int:
    """Sends the signal until all have the state: a process may fork in the meantime."""
    until = time.monotonic() + _FREEZE_TIME
    first = _first_process(lab, member)
    while True:
        entries = _processes(first)
        others = [entry for entry in entries if entry.state not in wanted]
        if not others:
            return len(entries)
        if time.monotonic() > until:
            pids = ", ".join(str(entry.pid) for entry in others)
            raise PrepareError(f"processes of {member.name} ignore {number.name}", pids)
        platform.send(others, number)
        time.sleep(_PAUSE)


def reboot(lab: Lab, member: LabHost) -> None:
    """Restarts a host; the files in the user's home stay."""
    first = _first_process(lab, member)
    if entry := platform.process(first):
        _kill(first, entry.born)
    until = time.monotonic() + _REBOOT_TIME
    while first_processes(lab).get(member.name, first) == first or (
        states(lab)[member.name] not in ("up", "cut")
    ):
        if time.monotonic() > until or not lab.alive:
            log = lab.folder / "switch.log"
            raise PrepareError(f"{member.name} does not come back", fix=f"see {log}")
        time.sleep(_PAUSE)


# ------------------------------------------------------------------ what a lab needs


def _search_path() -> str:
    return os.environ.get("PATH", "/usr/bin:/bin") + ":" + _SYSTEM_PATH


def programs(names: Iterable[str]) -> dict[str, str]:
    """Returns the paths of programs; PrepareError with the packages if some are missing."""
    if not sys.platform.startswith("linux"):
        raise PrepareError(
            "a lab needs Linux",
            f"its hosts are namespaces of the Linux kernel; this is {sys.platform}",
            "run shanty in a virtual machine or a container with Linux",
        )
    found = {name: shutil.which(name, path=_search_path()) for name in names}
    missing = [name for name, path in found.items() if not path]
    if missing:
        packages = sorted({_PACKAGES[name] for name in missing})
        raise PrepareError(
            f"a lab needs {', '.join(missing)}",
            "not on PATH, nor in /usr/sbin",
            f"sudo apt-get install {' '.join(packages)}   (the names in Debian and Ubuntu)",
        )
    return {name: path for name, path in found.items() if path}


def forbidden(text: str, number: int | None, root: Path = Path("/")) -> PrepareError:
    """Explains why the kernel does not allow a lab; `text` and `number` are its error."""
    for name, bad, good in _SETTINGS:
        path = root / "proc/sys" / name.replace(".", "/")
        if os.getuid() and os.access(path, os.R_OK) and path.read_text().strip() == bad:
            return PrepareError(
                "only root can make a lab on this machine",
                f"the kernel setting {name} is {bad} ({text})",
                f"sudo sysctl -w {name}={good}   (or run `sudo shanty lab …`)",
            )
    if number in (errno.EPERM, errno.EACCES) or "not permitted" in text:
        return PrepareError(
            "this machine does not allow the namespaces that a lab consists of",
            f"{text}; in a container, the container runtime forbids them",
            "start the container with `--privileged`, or with `--cap-add SYS_ADMIN,NET_ADMIN "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined`",
        )
    return PrepareError("the lab could not be made", text)
