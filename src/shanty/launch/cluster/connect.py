"""Connects to the hosts of a run: all side by side, then, where a person has to help, again.

The first pass never asks (BatchMode). Hosts that want a password, or whose key is not known yet,
are then dialled one after the other on the user's terminal by ssh itself, which leaves a shared
connection behind; over that one the host is asked once more.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from shanty.launch.cluster.inventory import similar_group
from shanty.launch.cluster.keys import known_name
from shanty.launch.cluster.rpc_client import NoAnswerError, RpcClient
from shanty.launch.connections import openssh
from shanty.launch.connections.base import Connection, LocalTransport, Process
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
# What ssh says when a ProxyCommand ended; the words of that command are lost on a shared one.
_UNKNOWN_END = r"UNKNOWN port 65535"
# ssh's own words on such an end; where nobody else says anything, the host's sshd ended it.
_OWN_WORDS = ("kex_exchange_identification: ", "ssh_exchange_identification: ", "Connection ")
_ITS_FILE = "the key's file"  # where ssh does not name it
_TRIED_BY_HAND = ("host-silent", "shell-broken")
# Code, what ssh says, what it means, what to do, and maybe a command. The first that matches
# counts, so the words of a jump host, after which ssh adds some of its own, stand first.
_TABLE: tuple[tuple[str, ...], ...] = (
    (
        "host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for \S+ has changed",
        "its host key is not the one that is known",
        "if the host was set up anew, forget the old key",
        "{forget}",
    ),
    (
        "host-key-unknown",
        r"Host key verification failed|No \S+ host key is known",
        "its host key is not known yet",
        "log in once and compare the key",
        "ssh {login}",
    ),
    (
        "key-open",
        r"UNPROTECTED PRIVATE KEY FILE",
        "ssh does not use your key, since others may read its file",
        "let nobody but yourself read it",
        "{close}",
    ),
    (
        "password-needed",
        r"Permission denied \([^)]*(?:password|keyboard-interactive)",
        "it takes none of your keys, only a password",
        "log in once with the password, or let your key in",
        "ssh-copy-id {login}",
    ),
    (
        "key-refused",
        r"Permission denied|Too many authentication failures|No more authentication methods",
        "it takes none of your keys",
        "add your public key to ~/.ssh/authorized_keys there, or name the right key in "
        "~/.ssh/config (IdentityFile)",
    ),
    (
        "jump-refused",
        r"administratively prohibited",
        "the jump host does not pass connections on",
        "it needs AllowTcpForwarding yes in its sshd_config, and a way to the host",
    ),
    (
        "name-unknown",
        r"Could not resolve hostname|[Nn]ame or service not known|nodename nor servname"
        r"|failure in name resolution|No address associated with",
        "its name does not resolve",
        "look at the spelling, or give an address",
    ),
    (
        "ssh-refused",
        r"Connection refused",
        "nothing listens for ssh there",
        "start sshd on it, or give its port (~/.ssh/config, or ssh://HOST:PORT)",
    ),
    (
        "host-silent",
        r"timed out during banner exchange",
        "something takes the connection, but no ssh server answers",
        "the host may be frozen or overloaded: look at it by other means",
    ),
    (
        "host-unreachable",
        r"timed out|No route to host|[Nn]etwork is unreachable|Host is down|not responding",
        "it cannot be reached",
        "see whether it is up and on this network",
        "ping {name}",
    ),
    (
        "jump-refused",
        r"[Ss]tdio forwarding",
        "the jump host gets no connection to it",
        "see whether it is up, and reachable from the jump host",
    ),
    (
        "ssh-dropped",
        r"Exceeded MaxStartups|Not allowed at this time",
        "its sshd takes no more logins at the moment",
        "raise MaxStartups in its sshd_config, or try again later",
    ),
    (
        "ssh-mismatch",
        r"no matching|Unable to negotiate",
        "its ssh and the one here have no method in common",
        "name one in ~/.ssh/config (KexAlgorithms, HostKeyAlgorithms, Ciphers)",
    ),
    (
        "proxy-failed",
        _UNKNOWN_END,
        "what its connection goes through (ProxyCommand) ends before the login",
        "see what ssh says",
        "ssh -v {login}",
    ),
    (
        "not-ssh",
        r"banner|Bad packet length|Protocol major versions differ|invalid format",
        "what answers on that port is no ssh server",
        "give the port of its sshd (~/.ssh/config, or ssh://HOST:PORT)",
    ),
    (
        "ssh-dropped",
        r"[Cc]onnection (closed|reset)|closed by remote host|Broken pipe",
        "it drops the connection before the login",
        "its sshd may be overloaded (MaxStartups) or keep this address out: look at its log",
    ),
    (
        "ssh-configuration",
        r"Bad configuration option|bad permissions|Bad owner|terminating, \d+ bad",
        "ssh rejects its own configuration",
        "see what ssh says",
        "ssh {login}",
    ),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A host that cannot be used, and why.

    `code` is one of `finding.CODES`.
    """

    host: Host
    code: str
    what: str  # after "HOST: "
    fix: str = ""
    detail: str = ""  # what ssh or the host said itself
    command: str = ""  # what does it, to paste

    @property
    def cure(self) -> str:
        """The fix, with the command that does it."""
        return f"{self.fix}: {self.command}" if self.command else self.fix

    @property
    def asks_for_a_person(self) -> bool:
        """True where somebody at a terminal can help: a password, or an unknown host key."""
        return self.code in ("key-refused", "password-needed", "host-key-unknown")


def is_here(host: Host) -> bool:
    """True when the name means this machine, and nothing says to get there by ssh."""
    named = host.user or host.port or host.config or host.pod
    return not named and localhost.is_here(host.name)


def connection_to(host: Host) -> Connection:
    """The connection for a host."""
    if host.pod:
        from shanty.launch.kubernetes.pod_exec import PodExec  # it takes time to load

        return PodExec(host)
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
        if one.code == "name-unknown":
            refused[index] = replace(one, fix=_meant(one.host.name, groups) + one.fix)
    raise failure(refused, len(hosts))


def _meant(name: str, groups: Iterable[str]) -> str:
    """What the user may have meant by a name that does not resolve; "" for no idea."""
    if name == "lab":
        return "shanty lab up makes virtual hosts of that name. Else "
    group = similar_group(name, groups)
    return f"did you mean the group {group}? Else " if group else ""


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
    def __init__(self, progress: Progress | None, patience: float) -> None:
        self._progress = progress or (lambda _host, _text: None)
        self._patience = patience
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Semaphore] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._hops: dict[str, Refusal | None] = {}  # jump hosts that have been seen to
        self._processes: list[Process] = []
        self._given_up = False

    def side_by_side(self, connections: Sequence[Connection]) -> list[RpcClient | Refusal]:
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
            if host.pod:
                what = f"{error.what} ({error.why})" if error.why else error.what
                return Refusal(host, "pod-refused", what, error.fix)
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
        silent = isinstance(connection, OpenSSH) and openssh.silent_socket(connection.route)
        if silent:
            what = "the shared connection that ssh's configuration names is silent"
            fix = f"end the ssh that holds {silent}, or remove that file"
            client.notes.append((f"{what}; it was gone round", fix))
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

    def _watch(self, process: Process) -> None:
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
    return [*(_from_here(route.via) if route.via else ()), route]


def _refusal_by_ssh(route: Route, error: NoAnswerError) -> Refusal:
    """The cause why `route` failed; asks once more where a jump host or proxy has the answer."""
    if re.search(_UNKNOWN_END, error.text) and "timed out" not in error.text:
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


def refusal(
    host: Host, error: NoAnswerError, forget: Sequence[str] = ("ssh-keygen", "-R")
) -> Refusal:
    """The cause why `host` did not answer; `forget` is the command that forgets its old key."""
    detail = error.text
    if error.kind == "ended" and error.code in (255, None):
        ended = all(line.startswith(_OWN_WORDS) for line in detail.splitlines())
        for code, pattern, what, fix, *command in _TABLE:
            if re.search(pattern, detail) and not (code == "proxy-failed" and ended):
                names = {
                    "login": login_words(host),
                    "name": shlex.quote(host.name),
                    "forget": shlex.join(forget),
                    "close": f"chmod 600 {shlex.join(unprotected_keys(detail)) or _ITS_FILE}",
                }
                fitting = "".join(command).format(**names)
                return Refusal(host, code, what, fix, _last_lines(detail), fitting)
    code, what, fix = _other_cause(host, error)
    detail = "" if error.kind in ("python", "python-silent", "storage") else _last_lines(detail)
    by_hand = f"ssh {login_words(host)} true" if code in _TRIED_BY_HAND else ""
    return Refusal(host, code, what, fix, detail, by_hand)


def _other_cause(host: Host, error: NoAnswerError) -> tuple[str, str, str]:
    if error.kind == "python":
        seen = ", ".join(" is ".join(one.rsplit(",", 1)) for one in error.text.split())
        what = "it has no Python of version 3.9 or newer" + (f" ({seen})" if seen else "")
        code = "python-old" if seen else "python-missing"
        return code, what, "install one: its package is called python3 on most systems"
    if error.kind == "python-silent":
        what = f"{error.text.partition(' ')[2]}, the first Python there, starts and says nothing"
        return "host-silent", what, "see what it does; without it shanty finds no other"
    if error.kind == "storage":
        what = f"shanty's files cannot be written there: {error.text}"
        full = "No space left" in error.text or "quota" in error.text
        code = "disk-full" if full else "home-readonly"
        code = "inodes-full" if "inodes" in error.text else code
        return code, what, "free some space there, or make the folder writable"
    if error.kind == "silent":
        what = "it took the connection and then said nothing"
        return "host-silent", what, "see whether a login works"
    if error.code == 0:
        what = "its login ran no command, and ended well"
        return "shell-broken", what, "shanty needs a login that runs commands"
    what = f"the login ended with {error.code} before it said anything"
    return "shell-broken", what, "see what a command does there"


def unprotected_keys(text: str) -> list[str]:
    """The files of private keys that ssh says others may read."""
    return list(dict.fromkeys(re.findall(r"Permissions \d+ for '([^']+)' are too open", text)))


def login_words(host: Host) -> str:
    """The words to write behind `ssh` or `ssh-copy-id` to get to a host."""
    options = ["-F", host.config] if host.config else []
    return shlex.join([*options, *(["-p", str(host.port)] if host.port else []), host.login])


def _last_lines(text: str, count: int = 3) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip().strip("@")]
    return " / ".join(lines[-count:])
