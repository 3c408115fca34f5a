"""Runs a lab: holds its network, starts its hosts, and restarts dead hosts.

    python -m shanty.launch.lab.supervisor FOLDER

It is the first process of a pid namespace, so everything in the lab ends with it. It reports its
start on standard output, one JSON object a line: `{"up": HOST}` for each host, then
`{"done": true}`; or `{"error": TEXT, "errno": N}`, after which it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from shanty.launch.lab import machine
from shanty.launch.lab.model import GATEWAY, Lab, LabHost
from shanty.launch.plain_json import decode
from shanty.runtime.rundir import read_json, write_json

_START_TIME = 30.0  # seconds for all sshds to answer
_PAUSE = 0.01
_SHORT_LIFE = 5.0  # a host that lived for less is restarted only a few times
_MOST_SHORT_LIVES = 3


@dataclass
class RunningHost:
    """A host that has been started."""

    member: LabHost
    pid: int  # of its first process, as this process sees it; 0 once that has ended
    go: int  # a file to which a byte is written when its links exist
    result: TextIO  # a file with the error that prevents its sshd from starting
    since: float
    up: bool = False
    short_lives: int = 0


class Supervisor:
    """Holds the network of a lab and its hosts."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._hosts: dict[str, RunningHost] = {}

    def start(self) -> None:
        """Makes the network and starts all hosts; OSError if a step fails."""
        lab = self._lab
        machine.mount("none", "/", flags=machine.PRIVATE | machine.RECURSIVE)
        machine.mount("proc", "/proc", "proc")
        lines = ["link set lo up"]
        for number, nic in enumerate(lab.nics):
            lines += [
                f"link add br{number} type bridge",
                f"link set br{number} up",
                f"addr add {nic.network}.{GATEWAY}/24 dev br{number}",
            ]
        machine.set_network(lines)
        for member in lab.hosts:
            self._hosts[member.name] = self._fork(member)
        self._release(list(self._hosts.values()))
        for host in self._hosts.values():
            self._wait_for_sshd(host, time.monotonic() + _START_TIME)
            report({"up": host.member.name})
        self._note()

    def keep(self) -> NoReturn:
        """Reaps orphans, and restarts each host that ends, as a reboot does."""
        while True:
            signal.sigwait({signal.SIGCHLD})
            with contextlib.suppress(ChildProcessError):
                while pid := os.waitpid(-1, os.WNOHANG)[0]:
                    for host in list(self._hosts.values()):
                        if host.pid == pid:
                            self._restart(host)

    def _restart(self, dead: RunningHost) -> None:
        lives = dead.short_lives + 1 if time.monotonic() - dead.since < _SHORT_LIFE else 0
        dead.pid, dead.up = 0, False
        self._note()
        if lives > _MOST_SHORT_LIVES:
            return
        try:
            for number in range(len(self._lab.nics)):  # the kernel removes the links only later
                with contextlib.suppress(OSError):
                    machine.set_network([f"link del {port_name(dead.member.number, number)}"])
            host = self._fork(dead.member)
            host.short_lives = lives
            self._hosts[dead.member.name] = host
            self._release([host])
            self._note()
            if not self._is_cut(host.member):
                self._wait_for_sshd(host, time.monotonic() + _START_TIME)
            host.up = True
        except OSError as error:
            print(f"{dead.member.name} failed to restart: {error}", file=sys.stderr, flush=True)
        self._note()

    def _fork(self, member: LabHost) -> RunningHost:
        """Starts a process in new namespaces that waits for its links."""
        result_in, result_out = os.pipe()
        go_in, go_out = os.pipe()
        child = os.fork()
        if child == 0:
            _first_process(self._lab, member, go_in, result_out)
        os.close(result_out)
        os.close(go_in)
        os.waitpid(child, 0)
        result = os.fdopen(result_in)
        return RunningHost(member, _answer(member, result)["pid"], go_out, result, time.monotonic())

    def _release(self, hosts: list[RunningHost]) -> None:
        lines = []
        for host in hosts:
            for number, nic in enumerate(self._lab.nics):
                port = port_name(host.member.number, number)
                state = "down" if self._is_cut(host.member) else "up"
                lines += [
                    f"link add {port} type veth peer name {nic.name} "
                    f"address {nic.hardware_address(host.member.number)} netns {host.pid}",
                    f"link set {port} master br{number} {state}",
                ]
        machine.set_network(lines)
        for host in hosts:
            os.write(host.go, b"\n")
            os.close(host.go)
        for host in hosts:
            with host.result:
                _answer(host.member, host.result)

    def _is_cut(self, member: LabHost) -> bool:
        return (self._lab.files(member) / "cut").exists()

    def _wait_for_sshd(self, host: RunningHost, until: float) -> None:
        address = self._lab.address(host.member)
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((address, 22), timeout=2) as connection,
            ):
                if connection.recv(4) == b"SSH-":
                    host.up = True
                    return
            if not Path(f"/proc/{host.pid}/exe").exists() or time.monotonic() > until:
                log = self._lab.files(host.member) / "sshd.log"
                said = log.read_text(errors="replace").strip() if log.exists() else ""
                raise OSError(0, f"the sshd of {host.member.name} does not answer: {said[-800:]}")
            time.sleep(_PAUSE)

    def _note(self) -> None:
        hosts = {host.member.name: [host.pid, host.up] for host in self._hosts.values()}
        write_json(self._lab.folder / "pids.json", {"hosts": hosts})


def port_name(host: int, nic: int) -> str:
    """Returns the name of the supervisor's end of a host's cable."""
    return f"p{host}n{nic}"


def report(what: dict[str, Any]) -> None:
    """Reports to the process that started the lab."""
    print(json.dumps(what), flush=True)


def _first_process(lab: Lab, member: LabHost, go: int, result: int) -> NoReturn:
    """Forks the host's first process into new namespaces; reports its pid and ends."""
    try:
        machine.unshare("mnt", "net", "uts", "ipc", "pid")
        pid = os.fork()
        if pid:
            os.write(result, json.dumps({"pid": pid}).encode() + b"\n")
            os._exit(0)
        os.read(go, 1)
        machine.become(lab, member)
    except OSError as error:
        text = error.strerror or str(error)
        if error.filename:
            text += f": {error.filename}"
        os.write(result, json.dumps({"error": text, "errno": error.errno}).encode() + b"\n")
    finally:  # in any case this process must not continue as the supervisor
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        os._exit(1)


def _answer(member: LabHost, result: TextIO) -> dict[str, Any]:
    """Reads the report of a new process, empty once it is a host; OSError if it failed."""
    answer: dict[str, Any] = json.loads(result.readline() or "{}")
    if "error" in answer:
        raise OSError(answer["errno"] or 0, f"{member.name}: {answer['error']}")
    return answer


def main() -> NoReturn:
    """Runs the lab until killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    lab: Lab = decode(Lab, read_json(Path(sys.argv[1]) / "lab.json"))
    supervisor = Supervisor(lab)
    try:
        supervisor.start()
    except OSError as error:
        report({"error": error.strerror or str(error), "errno": error.errno})
        os._exit(1)
    report({"done": True})
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    supervisor.keep()


if __name__ == "__main__":
    main()
