"""Other machines, through the user's own `ssh`.

~/.ssh/config applies in full: aliases, ports, identities, agents, jump hosts, checks of host keys.
shanty adds only the shared connection (so that a host asks for a password once) and limits for
every wait, and turns off the user's forwarding.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from shanty.runtime.errors import PrepareError, StorageError
from shanty.runtime.platform import scratch_root
from shanty.runtime.site import Host

CONNECT_TIMEOUT = 10  # seconds in which a host has to answer
_PERSIST = 60  # seconds that a shared connection stays after its last use
_ASKING = 8.0  # seconds for calls of ssh that do not use the network
_LOGGED_IN = "Authenticated to "  # what ssh says after a login of its own, with LogLevel VERBOSE
_GREETING = 3.0  # seconds for a shared connection to greet back, which takes it a millisecond
_HELLO = bytes.fromhex("00000008 00000001 00000004")  # length, MUX_MSG_HELLO, version 4
ALONE = ("ControlMaster=no", "ControlPath=none")
_MOST_HOPS = 8
_ALWAYS = (
    "ServerAliveInterval=5",
    "ServerAliveCountMax=2",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
)

# What a command needs. ssh has these settings since 8.7, so they are given only against others.
_USUAL = (("StdinNull", "no"), ("ForkAfterAuthentication", "no"), ("SessionType", "default"))

_LONGEST_SOCKET = 107 - 17 if sys.platform == "linux" else 103 - 17
# A socket's path has at most 103 bytes on macOS, 107 on Linux; ours add 1 + 20, and ssh adds 17
# to the name while it makes one.
_LONGEST = 103 - 21 - 17


def resolved(host: Host) -> dict[str, str]:
    """ssh's settings for a host (`ssh -G`): hostname, port, user, proxyjump, identityfile, …

    The keys are ssh's, in lower case; several values of a key are joined by line ends.
    PrepareError if ssh is missing or rejects its configuration.
    """
    argv = ["ssh", "-G", *_dialled(host), "--", host.login]
    try:
        done = _run(argv, _ASKING)
    except FileNotFoundError:
        raise PrepareError(
            "ssh not found on this machine", fix="install OpenSSH's client (openssh-client)"
        ) from None
    except subprocess.TimeoutExpired:
        raise PrepareError(
            f"ssh does not finish reading its configuration within {_ASKING:.0f} s",
            "a command of a `Match exec` line there hangs",
            f"find and correct it: `{shlex.join([*argv[:1], '-v', *argv[1:]])}`",
        ) from None
    if done.returncode:
        raise PrepareError(
            f"ssh rejects {host.login}",
            done.stderr.strip(),
            f"see the output of `{shlex.join(argv)}`",
        )
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found[key] = f"{found[key]}\n{value}" if key in found else value
    return found


def known_hosts_file(settings: Mapping[str, str]) -> Path:
    """The file to which ssh adds the keys of hosts; `settings` are those of `resolved`."""
    names = settings.get("userknownhostsfile", "") or "~/.ssh/known_hosts"
    whole = Path(names).expanduser()  # ssh lists several files without quotes
    return whole if whole.exists() else Path(names.partition(" ")[0]).expanduser()


@dataclass(frozen=True)
class Route:
    """The way to a host: ssh's settings for it, and the jump host.

    With `alone` no connection is shared, so that each is a new login, and ssh passes on the errors
    of a ProxyCommand. `timeout` is how many seconds the host has to answer.
    """

    host: Host
    settings: dict[str, str]
    via: Route | None = None
    alone: bool = False
    timeout: int = CONNECT_TIMEOUT

    @cached_property
    def key(self) -> str:
        """The same for two hosts that can share one connection."""
        facts = [self.host.config, self.via.key if self.via else ""]
        for name in ("hostname", "port", "user", "hostkeyalias", "proxycommand"):
            facts.append(self.settings.get(name, ""))
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]

    @property
    def first(self) -> Route:
        """The first machine on the way."""
        return self.via.first if self.via else self


def route_to(host: Host, jumps: str | None = None, depth: int = 0) -> Route:
    """The route of ssh's configuration; `jumps` replaces its ProxyJump."""
    settings = resolved(host)
    through = settings.get("proxyjump", "") if jumps is None else jumps
    if through.lower() in ("", "none"):
        return Route(host, settings)
    if depth >= _MOST_HOPS:
        raise PrepareError(
            f"the jump hosts on the way to {host.name} form a circle",
            f"ssh's configuration has ProxyJump {through}",
            "leave out one of these lines: the first jump host has to be reached directly",
        )
    before, _, last = through.rpartition(",")
    hop = jump_host(last)._replace(config=host.config)
    if (hop.name, hop.port or 22) == (host.name, int(settings.get("port", 22))):
        return Route(host, settings)  # `Host *` with a ProxyJump applies to the jump host as well
    return Route(host, settings, route_to(hop, before or None, depth + 1))


def jump_host(text: str) -> Host:
    """A host as ProxyJump names it: [ssh://][USER@]HOST[:PORT]."""
    user, _, place = text.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
    if place.startswith("["):
        name, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    elif place.count(":") == 1:
        name, _, port = place.partition(":")
    else:
        name, port = place, ""
    return Host(name, user or None, int(port) if port.isdigit() else None)


class OpenSSH:
    """Starts processes on a host by `ssh`, over one shared connection.

    With `fresh`, each has its own login, for which the host has that many seconds: a login that is
    still open would hide a new fault.
    """

    host: Host

    def __init__(self, host: Host, fresh: int | None = None) -> None:
        self.host = host
        self._fresh = fresh
        self._route: Route | PrepareError | None = None

    @property
    def route(self) -> Route:
        """The way to the host, or PrepareError; calls ssh once.

        Not a `cached_property`: before Python 3.12 that makes all hosts wait for each other.
        """
        if self._route is None:
            try:
                route = route_to(self.host)
                fresh = self._fresh
                self._route = replace(route, alone=True, timeout=fresh) if fresh else route
            except PrepareError as error:
                self._route = error
        if isinstance(self._route, PrepareError):
            raise self._route
        return self._route

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `argv` there, without prompts and without access to our terminal."""
        # `exec` and quotes of this kind mean the same to sh, bash, zsh, fish and csh.
        command = "exec " + shlex.join(argv)
        settings = self.route.settings
        usual = [
            f"{name}={value}"
            for name, value in _USUAL
            if settings.get(name.lower(), value) != value
        ]
        options = [word for each in ("BatchMode=yes", *usual) for word in ("-o", each)]
        return subprocess.Popen(
            [*command_to(self.route), *options, "--", self.host.login, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )

    def close(self) -> None:
        """End the shared connection, if shanty made one."""
        hang_up(self.route)


def command_to(route: Route, shared: Sequence[str] | None = None) -> list[str]:
    """The `ssh` command and its options for a route, without the destination.

    `shared` replaces the options that share the connection.
    """
    words = ["ssh", *_dialled(route.host), "-o", f"ConnectTimeout={route.timeout}"]
    # Its messages give the cause of a failure; VERBOSE also says how far a login got
    level = f"LogLevel={'VERBOSE' if route.alone else 'INFO'}"
    for option in (*_ALWAYS, level, *(_sharing(route) if shared is None else shared)):
        words += ["-o", option]
    if route.via is not None:
        words += ["-o", f"ProxyCommand={_through(route.via)}"]
    return words


def master_command(route: Route, *options: str) -> list[str]:
    """The command that only logs in and leaves a shared connection behind."""
    more = [word for option in options for word in ("-o", option)]
    return [*command_to(route), *more, "-f", "-N", "--", route.host.login]


def complaints_about(route: Route) -> str:
    """ssh's standard error on the way to a host, without shared connections.

    With a shared connection ssh discards the errors of a ProxyCommand, and does not pass on why a
    jump host cannot connect.
    """
    if route.via is not None:
        place = f"[{route.settings['hostname']}]:{route.settings['port']}"
        words = command_to(route.via, ALONE)
        argv = [*words, "-o", "BatchMode=yes", "-W", place, "--", route.via.host.login]
    else:
        words = command_to(route, ALONE)
        argv = [*words, "-o", "BatchMode=yes", "--", route.host.login, "exit"]
    return said_by(argv, route.timeout + _ASKING)


def said_by(argv: Sequence[str], seconds: float) -> str:
    """The standard error of an ssh command; "" if it takes longer."""
    try:
        return _run(argv, seconds).stderr.strip()
    except subprocess.TimeoutExpired:
        return ""


def _run(argv: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; subprocess.TimeoutExpired ends it with all that it started."""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", process_group=0,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def has_master(route: Route) -> bool:
    """True when a shared connection exists and its ssh answers."""
    return _tell_master(route, "check") == 0


def may_have_master(route: Route) -> bool:
    """True when the socket of a shared connection exists, dead or alive."""
    return not route.alone and not shares_as_the_user_says(route) and _socket(route).exists()


def has_let_in(route: Route, said: str) -> bool:
    """True if the host has accepted a login; `said` is what ssh wrote."""
    return _LOGGED_IN in said or has_master(route)


def let_go(route: Route) -> None:
    """End the shared connection as soon as nothing uses it."""
    if may_have_master(route):
        _tell_master(route, "stop")


def hang_up(route: Route) -> None:
    """End the shared connection, even if it no longer answers."""
    if route.alone or shares_as_the_user_says(route):
        return
    if _tell_master(route, "exit") != 0:
        with contextlib.suppress(OSError):
            _socket(route).unlink()


def shares_as_the_user_says(route: Route) -> bool:
    """True when ssh's configuration shares connections, which are then used.

    False if a process holds the socket and does not answer: ssh would wait indefinitely.
    """
    return bool(_users_socket(route)) and not silent_socket(route)


def silent_socket(route: Route) -> str:
    """The socket of ssh's configuration, if its process does not answer; else ""."""
    path = _users_socket(route)
    return path if path and _hangs(path) else ""


def _users_socket(route: Route) -> str:
    shared = route.settings.get("controlmaster", "") in ("auto", "autoask")
    path = route.settings.get("controlpath", "none")
    fits = len(os.fsencode(path)) <= _LONGEST_SOCKET  # else ssh refuses to log in with it
    return path if shared and path != "none" and fits else ""


@cache
def _hangs(path: str) -> bool:
    """True if a process listens at the socket of a shared connection, and does not answer.

    Both sides of such a connection begin with a greeting (OpenSSH's PROTOCOL.mux).
    """
    with socket.socket(socket.AF_UNIX) as master:
        master.settimeout(_GREETING)
        try:
            master.connect(path)
            master.sendall(_HELLO)
            master.recv(1)
        except (TimeoutError, BlockingIOError):  # which is a full backlog
            return True
        except OSError:  # ssh itself handles a missing or dead socket
            return False
    return False


def _tell_master(route: Route, what: str) -> int:
    if not shares_as_the_user_says(route) and not may_have_master(route):
        return 255
    try:
        return subprocess.run(
            [*command_to(route), "-O", what, "--", route.host.login],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ASKING / 2,
        ).returncode
    except subprocess.TimeoutExpired:
        return 255


def _dialled(host: Host) -> list[str]:
    words = ["-F", host.config] if host.config else []
    return [*words, "-p", str(host.port)] if host.port else words


def _socket(route: Route) -> Path:
    return socket_folder(os.environ) / route.key


def _sharing(route: Route) -> tuple[str, ...]:
    if route.alone:
        return ALONE
    if shares_as_the_user_says(route):
        kept = route.settings.get("controlpersist", "no") not in ("no", "false")
        return () if kept else (f"ControlPersist={_PERSIST}",)
    return ("ControlMaster=auto", f"ControlPath={_socket(route)}", f"ControlPersist={_PERSIST}")


def _through(hop: Route) -> str:
    """The ProxyCommand through `hop`, over its shared connection."""
    quoted = shlex.join([*command_to(hop), "-o", "BatchMode=yes"]).replace("%", "%%")
    return f"{quoted} -W '[%h]:%p' -- {shlex.quote(hop.host.login)}"


# ---------------------------------------------------------- sockets of shared connections


def socket_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the sockets, which only this user can access; made if necessary.

    StorageError if another user has made a folder of that name.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if _suits(runtime):
        folder = Path(runtime, "shanty")
        try:
            return _made(folder)
        except OSError:
            pass  # of a session that has ended, or of another user (su): use /tmp
    folder = Path(scratch_root(), "ssh")
    try:
        _made(folder.parent)
        return _made(folder)
    except OSError as error:
        raise StorageError(
            f"the folder {folder} cannot be used for shared ssh connections",
            error.strerror or str(error),
            f"remove {folder.parent}, or set XDG_RUNTIME_DIR to a folder of your own",
        ) from error


def _suits(runtime: str) -> bool:
    """True for a folder whose name ssh takes literally, and is short enough for a socket."""
    plain = not set(runtime) & set(" \t\"%'\\$~#")
    room = len(os.fsencode(runtime)) + len("/shanty") <= _LONGEST
    return runtime.startswith("/") and plain and room and Path(runtime).is_dir()


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(None, "it belongs to another user")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
