"""Controls the hosts of a lab from outside: commands, cables, power."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from shanty.launch.lab import files, machine, syscalls
from shanty.launch.lab.lifecycle import kill
from shanty.launch.lab.model import Lab, LabHost
from shanty.launch.lab.supervisor import port_name
from shanty.runtime import platform
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.platform import Process
from shanty.runtime.rundir import read_json

_REBOOT_TIME = 40.0
_FREEZE_TIME = 10.0
_PAUSE = 0.02
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as shells have it


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


def first_process(lab: Lab, member: LabHost) -> int:
    """Returns the pid of a host's first process; NotFoundError when the host is not there."""
    pid = first_processes(lab).get(member.name)
    if pid is None:
        raise NotFoundError(
            f"{member.name} has no process",
            "it is just starting, or it did not start again",
            f"see {lab.folder / 'switch.log'} and {lab.files(member) / 'sshd.log'}",
        )
    return pid


def execute(lab: Lab, member: LabHost, argv: Sequence[str]) -> int:
    """Runs a command on a host's console, with our standard streams; returns its exit code.

    It needs no network and has power over the host's network and mounts. The calling process
    goes into the host for good, so this is for a program that does nothing else afterwards.
    """
    pid = first_process(lab, member)
    env = {
        "HOME": member.home,
        "USER": lab.user,
        "LOGNAME": lab.user,
        "SHELL": "/bin/sh",
        "PATH": files.host_path(lab) + ("" if not lab.uid else ":/usr/sbin:/sbin"),
        **{key: os.environ[key] for key in ("TERM", "LANG") if key in os.environ},
    }
    syscalls.enter(pid, tuple(syscalls.NAMESPACES))
    syscalls.keep_capabilities()
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
    """Pulls the host's cables: nothing is delivered from or to it, and nobody is told."""
    (lab.files(member) / "cut").touch()
    _set_links(lab, member, "down")


def join(lab: Lab, member: LabHost) -> None:
    """Plugs the host's cables in again."""
    (lab.files(member) / "cut").unlink(missing_ok=True)
    _set_links(lab, member, "up")


def _set_links(lab: Lab, member: LabHost, state: str) -> None:
    ports = [port_name(member.number, number) for number in range(len(lab.nics))]
    child = os.fork()
    if child == 0:  # the network of the supervisor is entered for good, so in a process of its own
        code = 1
        try:
            syscalls.enter(lab.pid, ("user", "net"))
            syscalls.keep_capabilities()
            machine.set_network(f"link set {port} {state}" for port in ports)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise PrepareError(f"the links of {member.name} could not be set {state}")


def _processes(first: int) -> list[Process]:
    """Returns every process of a host, those of `lab exec` included."""
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
    """Signals until all are as wanted: one that forks meanwhile leaves a child behind."""
    until = time.monotonic() + _FREEZE_TIME
    first = first_process(lab, member)
    while True:
        entries = _processes(first)
        others = [entry for entry in entries if entry.state not in wanted]
        if not others:
            return len(entries)
        if time.monotonic() > until:
            pids = ", ".join(str(entry.pid) for entry in others)
            raise PrepareError(f"processes of {member.name} do not obey {number.name}", pids)
        platform.send(others, number)
        time.sleep(_PAUSE)


def reboot(lab: Lab, member: LabHost) -> None:
    """Restarts a host; its files in the user's home stay."""
    first = first_process(lab, member)
    if entry := platform.process(first):
        kill(first, entry.born)
    until = time.monotonic() + _REBOOT_TIME
    while first_processes(lab).get(member.name, first) == first or (
        states(lab)[member.name] not in ("up", "cut")
    ):
        if time.monotonic() > until or not lab.alive:
            log = lab.folder / "switch.log"
            raise PrepareError(f"{member.name} does not come back", fix=f"see {log}")
        time.sleep(_PAUSE)
