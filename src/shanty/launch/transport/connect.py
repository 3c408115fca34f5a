"""Connects to the hosts of a run: to all side by side, then again where a user has to help.

The first pass never prompts (BatchMode). For hosts that want a password, or whose key is not known
yet, ssh then logs in on the user's terminal, one host after the other, and leaves a shared
connection behind, over which the second attempt goes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path

from shanty.launch.transport import hung_login, openssh, unusable_keys
from shanty.launch.transport.connection import Connection, LocalTransport, Process
from shanty.launch.transport.keys import known_name
from shanty.launch.transport.openssh import OpenSSH, Route
from shanty.launch.transport.refusal import LATE, OF_SSH, UNKNOWN_END, Refusal, refusal
from shanty.launch.transport.rpc_client import NoAnswerError, RpcClient
from shanty.runtime import localhost
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.site import Host
from shanty.runtime.suggestions import closest

Progress = Callable[[Host, str], None]  # gets a text for the user about a host

_AT_ONCE = 32  # connections that are made at the same time
_AT_ONCE_THROUGH = 8  # the same through one jump host: sshd drops some of more than ten
_LOGIN = 180.0  # seconds that a user has for one login
_LOGIN_ALONE = 20.0  # seconds for a login without prompts
PATIENCE = 20.0  # seconds in which a host has to run a command
_LEAST = 2.0  # seconds without which no login is begun: a slow host would look like a dead one


def is_here(host: Host) -> bool:
    """True if the name means this machine, and the host has no settings for ssh."""
    named = host.user or host.port or host.config or host.pod
    return not named and localhost.is_here(host.name)


def connection_to(host: Host, fresh: int | None = None) -> Connection:
    """The connection for a host; `fresh` as for `OpenSSH`."""
    if host.pod:
        from shanty.launch.kubernetes.pod_exec import PodExec  # slow to load

        return PodExec(host)
    return LocalTransport(host) if is_here(host) else OpenSSH(host, fresh)


def connect(
    hosts: Sequence[Host],
    *,
    terminal: bool,
    progress: Progress = lambda _host, _text: None,
    groups: Iterable[str] = (),
) -> list[RpcClient]:
    """An RPC client for each of the hosts, in their order.

    With `terminal`, ssh may prompt there. PrepareError names every host that could not be reached;
    then no RPC client stays open. `groups` are names of groups, of which the user may have
    misspelled one.
    """
    outcomes = attempt(hosts, terminal=terminal, progress=progress)
    refused = [one for one in outcomes if isinstance(one, Refusal)]
    clients = [outcome for outcome in outcomes if isinstance(outcome, RpcClient)]
    if not refused:
        return clients
    for client in clients:
        client.close(0.5)
    for index, one in enumerate(refused):
        if one.code == "name-unknown":
            refused[index] = replace(one, fix=_meant(one.host.name, groups) + one.fix)
    raise failure(refused, len(hosts))


def _meant(name: str, groups: Iterable[str]) -> str:
    """A suggestion for a name that does not resolve; "" without one."""
    if name == "lab":
        return "shanty lab up makes virtual hosts of that name. Otherwise "
    group = closest(name, groups)
    return f"did you mean the group {group}? Otherwise " if group else ""


def failure(refused: Sequence[Refusal], total: int) -> PrepareError:
    """One error for all hosts that could not be reached, of `total`."""
    if len(refused) == 1:
        one = refused[0]
        return PrepareError(f"{one.host.name}: {one.what} [{one.code}]", one.detail, one.whole_fix)
    width = max(len(one.host.name) for one in refused)
    lines = [f"{one.host.name:<{width}}  {one.what} [{one.code}]" for one in refused]
    details = {one.detail for one in refused}
    if len(details) == 1 and "" not in details:
        lines += details
    fixes = list(dict.fromkeys(f"{one.host.name}: {one.whole_fix}" for one in refused if one.fix))
    why, fix = ("\n       ".join(each) for each in (lines, fixes))
    return PrepareError(f"{len(refused)} of {total} hosts cannot be used", why, fix)


def attempt(
    hosts: Sequence[Host],
    *,
    terminal: bool,
    progress: Progress = lambda _host, _text: None,
    fresh: int | None = None,
    patience: float = PATIENCE,
    until: float | None = None,
) -> list[RpcClient | Refusal]:
    """For each host, in their order, its RPC client or why it has none.

    With `fresh`, each login is new, and the host has that many seconds for it. `patience` is how
    many seconds a host may be silent after the login. Logins that are not complete when
    time.monotonic() is `until` are ended; the code of these refusals is `LATE`.
    """
    all_hosts = _Attempt(progress, patience, until)
    try:
        outcomes = all_hosts.side_by_side([connection_to(host, fresh) for host in hosts])
        if terminal:
            for index, outcome in enumerate(outcomes):
                if isinstance(outcome, Refusal) and outcome.asks_for_a_person:
                    outcomes[index] = all_hosts.with_a_person(outcome)
    except BaseException:
        all_hosts.give_up()
        raise
    return outcomes


class _Attempt:
    def __init__(self, progress: Progress, patience: float, until: float | None) -> None:
        self._progress = progress
        self._patience = patience
        self._until = until
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Semaphore] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._hops: dict[str, Refusal | None] = {}  # jump hosts that were tried
        self._processes: list[tuple[Host, Process]] = []
        self._ready: set[Host] = set()
        self._over = False

    @property
    def _left(self) -> float | None:
        """The seconds that are left; None for no limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def side_by_side(self, connections: Sequence[Connection]) -> list[RpcClient | Refusal]:
        pool = ThreadPoolExecutor(max_workers=max(1, min(_AT_ONCE, len(connections))))
        try:
            futures = [pool.submit(self._reach, each) for each in connections]
            if wait(futures, self._left).not_done:
                self._end_the_incomplete()
            return [each.result() for each in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def give_up(self) -> None:
        """End all processes, so that threads that wait for an answer return."""
        self._ready.clear()
        self._end_the_incomplete()

    def _end_the_incomplete(self) -> None:
        with self._lock:
            self._over = True
            for host, process in self._processes:
                if host not in self._ready:
                    process.kill()

    def with_a_person(self, refused: Refusal) -> RpcClient | Refusal:
        """Let ssh log in on the terminal, at jump hosts too if necessary, then reach the host."""
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
        late = Refusal(host, LATE, "the time did not suffice to reach it")
        if self._left is not None and self._left < _LEAST:
            return late
        outcome = self._outcome(connection)
        if not self._over or host in self._ready:
            return outcome
        if isinstance(outcome, RpcClient):
            outcome.close(0.0)  # its process was ended at the same moment
        return late

    def _outcome(self, connection: Connection) -> RpcClient | Refusal:
        host, begun = connection.host, time.monotonic()
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
            try:
                return _refusal_by_ssh(connection.route, error, time.monotonic() - begun)
            finally:
                openssh.let_go(connection.route)
        except ShantyError as error:
            missing = error.what.startswith("ssh not found")
            code = "ssh-missing" if missing else "ssh-configuration"
            if host.pod:
                what = f"{error.what} ({error.why})" if error.why else error.what
                return Refusal(host, "pod-refused", what, error.fix)
            return Refusal(host, code, error.what, error.fix, error.why)

    def _start_again(self, connection: OpenSSH) -> RpcClient:
        """Start an RPC server; again if the shared connection to the host has just died."""
        was_shared = openssh.may_have_master(connection.route)
        try:
            return self._started(connection)
        except NoAnswerError as error:
            # after a timeout, ssh has already tried a new connection
            died = error.kind == "ended" and error.code == OF_SSH
            if not (was_shared and died) or "timed out" in error.text or self._over:
                raise
            return self._started(connection)

    def _started(self, connection: Connection) -> RpcClient:
        report = partial(self._progress, connection.host)
        report("connects")
        here = [sys.executable] if isinstance(connection, LocalTransport) else []
        client = RpcClient.connect(
            connection,
            pythons=here,
            report=report,
            started=partial(self._watch, connection.host),
            patience=self._patience,
        )
        with self._lock:
            if not self._over:
                self._ready.add(connection.host)
        report("ready")
        silent = isinstance(connection, OpenSSH) and openssh.silent_socket(connection.route)
        if silent:
            what = "the shared connection of ssh's configuration does not answer"
            fix = f"end the ssh that holds {silent}, or remove that file"
            client.notes.append((f"{what}; a new connection was made", fix))
        return client

    def _open(self, hop: Route) -> Refusal | None:
        """Make a shared connection to `hop` before others use it."""
        with self._turns.setdefault(hop.key, threading.Lock()):
            if hop.key not in self._hops:
                refused = self._open(hop.via) if hop.via is not None else None
                if refused is None and not openssh.has_master(hop):
                    self._progress(hop.host, "connects")
                    refused = self._log_in(hop)
                self._hops[hop.key] = refused
            return self._hops[hop.key]

    def _log_in(self, route: Route) -> Refusal | None:
        """Make the shared connection of a jump host, without prompts."""
        # The ssh that stays as the shared connection keeps stderr open, so it is not a pipe.
        with tempfile.TemporaryFile() as complaints:
            process = subprocess.Popen(
                openssh.master_command(route, "BatchMode=yes"), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=complaints, process_group=0,
            )  # fmt: skip
            self._watch(route.host, process)
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
        return _refusal_by_ssh(route, NoAnswerError("ended", text, code), 0.0)

    def _watch(self, host: Host, process: Process) -> None:
        with self._lock:
            self._processes.append((host, process))
        if self._over:
            process.kill()


def _log_in_here(route: Route) -> bool:
    """Log in on the terminal, with ssh's prompts; ssh leaves a shared connection."""
    print(f"shanty: logging in to {route.host.login}", file=sys.stderr, flush=True)
    # It is in our process group, so that it can read the terminal, and Ctrl-C ends it too.
    try:
        return subprocess.run(openssh.master_command(route), timeout=_LOGIN).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _from_here(route: Route) -> list[Route]:
    return [*(_from_here(route.via) if route.via else ()), route]


def _refusal_by_ssh(route: Route, error: NoAnswerError, seconds: float) -> Refusal:
    """The cause why `route` failed after some seconds; what hangs on the host is ended.

    Tries again if only a jump host or proxy knows the cause.
    """
    if re.search(UNKNOWN_END, error.text) and "timed out" not in error.text:
        text = openssh.complaints_about(route) or error.text
        if route.via is not None and "open failed" not in text:
            text = "stdio forwarding failed"  # the jump host refused the second attempt
        error = NoAnswerError(error.kind, text, error.code)
    if error.kind == "silent" and openssh.has_let_in(route, error.text):
        error = NoAnswerError("login-silent", hung_login.end(route, seconds))
    found = refusal(route.host, error, _forgetting(route))
    cause = unusable_keys.cause(route) if found.code == "key-refused" else None
    return found if cause is None else replace(found, **cause._asdict())


def _forgetting(route: Route) -> list[str]:
    """The command that removes the host's key from the known hosts, under ssh's name for it."""
    settings = route.settings
    name = known_name({"hostname": route.host.name, **settings})
    file = openssh.known_hosts_file(settings)
    usual = file == Path.home() / ".ssh/known_hosts"
    return ["ssh-keygen", *([] if usual else ["-f", str(file)]), "-R", name]
