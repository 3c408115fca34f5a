"""Connects to the hosts of a run: all side by side, then, where a person has to help, again.

The first pass never asks (BatchMode). Hosts that want a password, or whose key is not known yet,
are then dialled one after the other on the user's terminal by ssh itself, which leaves a shared
connection behind; over that one the host is asked once more.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from shanty.launch.cluster.inventory import similar_group
from shanty.launch.cluster.keys import known_name
from shanty.launch.cluster.rpc_client import NoAnswerError, RpcClient
from shanty.launch.cluster.ssh_errors import UNKNOWN_END, Refusal, refusal
from shanty.launch.connections import openssh
from shanty.launch.connections.base import Connection, LocalTransport
from shanty.launch.connections.openssh import OpenSSH, Route
from shanty.launch.host import Host
from shanty.runtime import localhost
from shanty.runtime.errors import PrepareError, ShantyError

Progress = Callable[[Host, str], None]  # hears for a person what is done with a host

_AT_ONCE = 32  # connections that are made at the same time
_AT_ONCE_THROUGH = 8  # the same through one jump host: sshd drops some of more than ten
_LOGIN = 180.0  # seconds that a person has for one login
_LOGIN_ALONE = 30.0  # seconds for one that asks nobody
_OF_SSH = 255  # the exit code of an ssh that failed itself
PATIENCE = 30.0  # seconds in which a host that was logged in to has to say something


def is_here(host: Host) -> bool:
    """True when the name means this machine, and nothing says to get there by ssh."""
    return not (host.user or host.port or host.config) and localhost.is_here(host.name)


def connection_to(host: Host) -> Connection:
    """The connection for a host."""
    return LocalTransport(host) if is_here(host) else OpenSSH(host)


def connect(
    hosts: Sequence[Host],
    *,
    terminal: bool,
    progress: Progress | None = None,
    groups: Iterable[str] = (),
) -> list[RpcClient]:
    """An RPC client for each of the hosts, in their order.

    With `terminal`, ssh may ask there for what it needs. PrepareError names every host that
    could not be had; then no RPC client is left. `groups` are the names of groups that the user may
    have meant by a name that does not resolve.
    """
    outcomes = attempt(hosts, terminal=terminal, progress=progress)
    refused = [one for one in outcomes if isinstance(one, Refusal)]
    clients = [outcome for outcome in outcomes if isinstance(outcome, RpcClient)]
    if not refused:
        return clients
    for client in clients:
        client.close(0.5)
    for index, one in enumerate(refused):
        meant = similar_group(one.host.name, groups) if one.code == "name-unknown" else None
        if meant is not None:
            refused[index] = replace(one, fix=f"did you mean the group {meant}? Else {one.fix}")
    raise failure(refused, len(hosts))


def failure(refused: Sequence[Refusal], total: int) -> PrepareError:
    """One error for all hosts that could not be had, of `total`."""
    if len(refused) == 1:
        one = refused[0]
        return PrepareError(f"{one.host.name}: {one.what} [{one.code}]", one.detail, one.cure)
    width = max(len(one.host.name) for one in refused)
    lines = [f"{one.host.name:<{width}}  {one.what} [{one.code}]" for one in refused]
    fixes = list(dict.fromkeys(f"{one.host.name}: {one.cure}" for one in refused if one.fix))
    why, fix = ("\n       ".join(each) for each in (lines, fixes))
    return PrepareError(f"{len(refused)} of {total} hosts cannot be used", why, fix)


def attempt(
    hosts: Sequence[Host],
    *,
    terminal: bool,
    progress: Progress | None = None,
    connection: Callable[[Host], Connection] = connection_to,
    patience: float = PATIENCE,
) -> list[RpcClient | Refusal]:
    """For each host, in their order, its RPC client or why there is none.

    `patience` is how many seconds a host that was logged in to may say nothing.
    """
    all_hosts = _Attempt(progress, patience)
    try:
        outcomes = all_hosts.side_by_side([connection(host) for host in hosts])
        if terminal:
            for index, outcome in enumerate(outcomes):
                if isinstance(outcome, Refusal) and outcome.asks_for_a_person:
                    outcomes[index] = all_hosts.with_a_person(outcome)
    except BaseException:
        all_hosts.give_up()
        raise
    return outcomes


class _Attempt:
    """One attempt to reach all hosts."""

    def __init__(self, progress: Progress | None, patience: float) -> None:
        self._progress = progress or (lambda _host, _text: None)
        self._patience = patience
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Semaphore] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._hops: dict[str, Refusal | None] = {}  # jump hosts that have been seen to
        self._processes: list[subprocess.Popen[bytes]] = []
        self._given_up = False

    def side_by_side(self, connections: Sequence[Connection]) -> list[RpcClient | Refusal]:
        """Reach all at once, as many as the jump hosts take."""
        if len(connections) == 1:
            return [self._reach(connections[0])]
        pool = ThreadPoolExecutor(max_workers=max(1, min(_AT_ONCE, len(connections))))
        try:
            return list(pool.map(self._reach, connections))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def give_up(self) -> None:
        """End what is on; threads that wait for an answer get none."""
        with self._lock:
            self._given_up = True
            for process in self._processes:
                process.kill()

    def with_a_person(self, refused: Refusal) -> RpcClient | Refusal:
        """Let ssh log in on the terminal, wherever on the way it has to, then reach the host."""
        connection = OpenSSH(refused.host)
        *hops, last = _from_here(connection.route)
        for hop in hops:
            if not openssh.has_master(hop) and not _log_in_here(hop):
                what = f"the login at its jump host {hop.host.name} did not succeed"
                return replace(refused, what=what, detail="")
            self._hops.pop(hop.key, None)
        outcome = self._reach(connection) if hops else refused
        if isinstance(outcome, RpcClient) or not outcome.asks_for_a_person:
            return outcome
        if not _log_in_here(last):
            return replace(outcome, what="the login did not succeed", detail="")
        return self._reach(connection)

    def _reach(self, connection: Connection) -> RpcClient | Refusal:
        host = connection.host
        try:
            if not isinstance(connection, OpenSSH):
                return self._started(connection)
            route = connection.route
            if route.via is None:
                return self._start_again(connection)
            refused = self._open(route.via)
            if refused is not None:
                what = f"its jump host {refused.host.name}: {refused.what}"
                return replace(refused, host=host, what=what)
            gate = threading.Semaphore(_AT_ONCE_THROUGH)
            with self._gates.setdefault(route.first.key, gate):
                return self._start_again(connection)
        except NoAnswerError as error:
            if not isinstance(connection, OpenSSH):
                return refusal(host, error)
            return _refusal_by_ssh(connection.route, error)
        except ShantyError as error:
            code = "ssh-missing" if "no ssh" in error.what else "ssh-configuration"
            return Refusal(host, code, error.what, error.fix, error.why)

    def _start_again(self, connection: OpenSSH) -> RpcClient:
        """Start an RPC server; once more where the shared connection to the host has just died."""
        was_shared = openssh.may_have_master(connection.route)
        try:
            return self._started(connection)
        except NoAnswerError as error:
            # where it timed out, ssh has tried a connection of its own already
            died = error.kind == "ended" and error.code == _OF_SSH
            if not (was_shared and died) or "timed out" in error.text or self._given_up:
                raise
            return self._started(connection)

    def _started(self, connection: Connection) -> RpcClient:
        told = partial(self._progress, connection.host)
        told("connects")
        here = [sys.executable] if isinstance(connection, LocalTransport) else []
        client = RpcClient.connect(
            connection, pythons=here, told=told, started=self._watch, patience=self._patience
        )
        told("ready")
        return client

    def _open(self, hop: Route) -> Refusal | None:
        """See that `hop` has a shared connection before others lean on it."""
        with self._turns.setdefault(hop.key, threading.Lock()):
            if hop.key not in self._hops:
                refused = self._open(hop.via) if hop.via is not None else None
                if refused is None and not openssh.has_master(hop):
                    self._progress(hop.host, "connects")
                    refused = self._log_in(hop)
                self._hops[hop.key] = refused
            return self._hops[hop.key]

    def _log_in(self, route: Route) -> Refusal | None:
        """Make the shared connection of a jump host, without asking anybody."""
        # What stays behind as the shared connection may keep the stream open: a file, no pipe.
        with tempfile.TemporaryFile() as complaints:
            process = subprocess.Popen(
                openssh.master_command(route, "BatchMode=yes"), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=complaints, process_group=0,
            )  # fmt: skip
            self._watch(process)
            try:
                code = process.wait(_LOGIN_ALONE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return refusal(route.host, NoAnswerError("silent"))
            complaints.seek(0)
            text = complaints.read().decode(errors="replace").strip()
        if code == 0:
            return None
        return _refusal_by_ssh(route, NoAnswerError("ended", text, code))

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Keep a process in mind, to be ended if all is given up."""
        with self._lock:
            self._processes.append(process)
            late = self._given_up
        if late:
            process.kill()


def _log_in_here(route: Route) -> bool:
    """Log in on the terminal; ssh asks what it has to, and leaves a shared connection."""
    print(f"shanty: logging in to {route.host.login}", file=sys.stderr, flush=True)
    # It is in our own process group: it reads the terminal, and Ctrl-C ends it too.
    try:
        return subprocess.run(openssh.master_command(route), timeout=_LOGIN).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _from_here(route: Route) -> list[Route]:
    """The machines on the way, the nearest first, and the last one."""
    return [*(_from_here(route.via) if route.via else ()), route]


def _refusal_by_ssh(route: Route, error: NoAnswerError) -> Refusal:
    """The cause why `route` failed; asks once more where a jump host or proxy has the answer."""
    if re.search(UNKNOWN_END, error.text) and "timed out" not in error.text:
        text = openssh.complaints_about(route) or error.text
        if route.via is not None and "open failed" not in text:
            text = "stdio forwarding failed"  # the jump host did not let us ask for the cause
        error = NoAnswerError(error.kind, text, error.code)
    return refusal(route.host, error, _forgetting(route))


def _forgetting(route: Route) -> list[str]:
    """The command that forgets the host's key, under the name that ssh keeps it by."""
    settings = route.settings
    name = known_name({"hostname": route.host.name, **settings})
    file = openssh.known_hosts_file(settings)
    usual = file == Path.home() / ".ssh/known_hosts"
    return ["ssh-keygen", *([] if usual else ["-f", str(file)]), "-R", name]
