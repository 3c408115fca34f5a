"""Other machines, through the user's own `ssh`.

Whatever ~/.ssh/config says is honoured: aliases, ports, identities, agents, jump hosts, whether
host keys are checked. Ours are only the shared connection (so that a host asks for a password
once), bounds on every wait, and that no forwarding of the user's is set up by us.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import socket
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from shanty.launch.host import Host
from shanty.runtime.errors import PrepareError, StorageError
from shanty.runtime.platform import scratch_root

CONNECT_TIMEOUT = 10  # seconds until a host that does not answer is given up
_PERSIST = 60  # seconds that a shared connection stays after its last use
_ASKING = 10.0  # seconds for what ssh does without a network
_GREETING = 3.0  # seconds for a shared connection to greet back; it takes it a millisecond
_HELLO = bytes.fromhex("00000008 00000001 00000004")  # length, MUX_MSG_HELLO, version 4
_ALONE = ("ControlMaster=no", "ControlPath=none")
_MOST_HOPS = 8
_ALWAYS = (
    "ServerAliveInterval=5",
    "ServerAliveCountMax=2",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "LogLevel=INFO",  # what it says tells the cause of a failure
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
)

# A socket's path has at most 103 bytes on macOS, 107 on Linux; ours add 1 + 20, and ssh adds 17
# to the name while it makes one.
_LONGEST = 103 - 21 - 17


def resolved(host: Host) -> dict[str, str]:
    """What ssh makes of a host (`ssh -G`): hostname, port, user, proxyjump, identityfile, …

    The keys are ssh's, in small letters; the values of one that comes several times are joined
    by line ends. PrepareError when ssh is missing or rejects its configuration.
    """
    argv = ["ssh", "-G", *_dialled(host), "--", host.login]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_ASKING, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise PrepareError(
            "there is no ssh on this machine", fix="install OpenSSH's client (openssh-client)"
        ) from None
    except subprocess.TimeoutExpired:
        raise PrepareError(
            f"ssh does not say within {_ASKING:.0f} s what it makes of {host.name}",
            "a `Match exec` of its configuration may hang",
        ) from None
    if done.returncode:
        raise PrepareError(
            f"ssh cannot make sense of {host.login}",
            done.stderr.strip(),
            f"see what `{shlex.join(argv)}` says",
        )
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found[key] = f"{found[key]}\n{value}" if key in found else value
    return found


def known_hosts_file(settings: Mapping[str, str]) -> Path:
    """The file to which ssh adds the keys of hosts; `settings` are those of `resolved`."""
    names = settings.get("userknownhostsfile", "") or "~/.ssh/known_hosts"
    whole = Path(names).expanduser()  # ssh names several without quotes
    return whole if whole.exists() else Path(names.partition(" ")[0]).expanduser()


@dataclass(frozen=True)
class Route:
    """The way to a host: what ssh makes of it, and the host that it is reached through.

    `alone`: no connection is shared, so that each is a login of its own, and ssh passes on what
    a ProxyCommand complains of. `timeout` is how many seconds the host has to answer.
    """

    host: Host
    settings: dict[str, str]
    via: Route | None = None
    alone: bool = False
    timeout: int = CONNECT_TIMEOUT

    @cached_property
    def key(self) -> str:
        """The same for two hosts that one connection can serve."""
        facts = [self.host.config, self.via.key if self.via else ""]
        for name in ("hostname", "port", "user", "hostkeyalias", "proxycommand"):
            facts.append(self.settings.get(name, ""))
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]

    @property
    def first(self) -> Route:
        """The machine that is connected to from here."""
        return self.via.first if self.via else self


def route_to(host: Host, jumps: str | None = None, depth: int = 0) -> Route:
    """The route that ssh's configuration gives; `jumps` stands in for its ProxyJump."""
    settings = resolved(host)
    through = settings.get("proxyjump", "") if jumps is None else jumps
    if through.lower() in ("", "none"):
        return Route(host, settings)
    if depth >= _MOST_HOPS:
        raise PrepareError(
            f"the jump hosts on the way to {host.name} go round in a circle",
            f"ssh's configuration says ProxyJump {through}",
        )
    before, _, last = through.rpartition(",")
    hop = replace(jump_host(last), config=host.config)
    if (hop.name, hop.port or 22) == (host.name, int(settings.get("port", 22))):
        return Route(host, settings)  # `Host *` with a ProxyJump means the jump host as well
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
    """Starts processes on a host by `ssh`, over one shared connection."""

    host: Host

    def __init__(self, host: Host) -> None:
        self.host = host

    @cached_property
    def route(self) -> Route:
        """How the host is reached; asks ssh once."""
        return route_to(self.host)

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `argv` there; never asks anything of a person, and is no part of our terminal."""
        # `exec` and quotes of this kind mean the same to sh, bash, zsh, fish and csh.
        command = "exec " + shlex.join(argv)
        return subprocess.Popen(
            [*command_to(self.route), "-o", "BatchMode=yes", "--", self.host.login, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )

    def close(self) -> None:
        """End the shared connection, if there is one of ours."""
        hang_up(self.route)


class FreshSSH(OpenSSH):
    """The same by a new login each time, which shows what is wrong with logging in."""

    def __init__(self, host: Host, timeout: int) -> None:
        super().__init__(host)
        self._timeout = timeout

    @cached_property
    def route(self) -> Route:
        """How the host is reached; asks ssh once."""
        return replace(route_to(self.host), alone=True, timeout=self._timeout)


def command_to(route: Route, shared: Sequence[str] | None = None) -> list[str]:
    """The `ssh` and its options for a route, without the destination.

    `shared` stands in for the options that share the connection.
    """
    words = ["ssh", *_dialled(route.host), "-o", f"ConnectTimeout={route.timeout}"]
    for option in (*_ALWAYS, *(_sharing(route) if shared is None else shared)):
        words += ["-o", option]
    if route.via is not None:
        words += ["-o", f"ProxyCommand={_through(route.via)}"]
    return words


def master_command(route: Route, *options: str) -> list[str]:
    """What logs in and leaves a shared connection behind, and does nothing else."""
    more = [word for option in options for word in ("-o", option)]
    return [*command_to(route), *more, "-f", "-N", "--", route.host.login]


def complaints_about(route: Route) -> str:
    """What ssh writes to its standard error on the way to a host, when it shares nothing.

    Of a connection that is to be shared it throws away what a ProxyCommand writes there, and a
    jump host's reason for getting nowhere is not passed on by a shared connection to it.
    """
    if route.via is not None:
        place = f"[{route.settings['hostname']}]:{route.settings['port']}"
        words = command_to(route.via, _ALONE)
        argv = [*words, "-o", "BatchMode=yes", "-W", place, "--", route.via.host.login]
    else:
        words = command_to(route, _ALONE)
        argv = [*words, "-o", "BatchMode=yes", "--", route.host.login, "exit"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=route.timeout + _ASKING,
            process_group=0,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stderr.decode(errors="replace").strip()


def has_master(route: Route) -> bool:
    """True when a shared connection is there and its ssh answers."""
    return _tell_master(route, "check") == 0


def may_have_master(route: Route) -> bool:
    """True when there is a socket of a shared connection, dead or alive."""
    return not route.alone and not shares_as_the_user_says(route) and _socket(route).exists()


def hang_up(route: Route) -> None:
    """End the shared connection, also one that answers no more."""
    if route.alone or shares_as_the_user_says(route):
        return
    if _tell_master(route, "exit") != 0:
        with contextlib.suppress(OSError):
            _socket(route).unlink()


def shares_as_the_user_says(route: Route) -> bool:
    """True when ssh's configuration shares connections by itself: then that one is used.

    But not where a process holds its socket and does not answer: ssh would wait for ever.
    """
    return bool(_users_socket(route)) and not silent_socket(route)


def silent_socket(route: Route) -> str:
    """The socket that ssh's configuration names, where its process does not answer; else ""."""
    path = _users_socket(route)
    return path if path and _hangs(path) else ""


def _users_socket(route: Route) -> str:
    shared = route.settings.get("controlmaster", "") in ("auto", "autoask")
    path = route.settings.get("controlpath", "none")
    return path if shared and path != "none" else ""


@cache
def _hangs(path: str) -> bool:
    """True where somebody listens at the socket of a shared connection, and does not answer.

    Who is greeted there greets back (OpenSSH's PROTOCOL.mux).
    """
    with socket.socket(socket.AF_UNIX) as master:
        master.settimeout(_GREETING)
        try:
            master.connect(path)
            master.sendall(_HELLO)
            master.recv(1)
        except (TimeoutError, BlockingIOError):  # which is a full backlog
            return True
        except OSError:  # there is none, or a dead one, which ssh deals with
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
        return _ALONE
    if shares_as_the_user_says(route):
        kept = route.settings.get("controlpersist", "no") not in ("no", "false")
        return () if kept else (f"ControlPersist={_PERSIST}",)
    return ("ControlMaster=auto", f"ControlPath={_socket(route)}", f"ControlPersist={_PERSIST}")


def _through(hop: Route) -> str:
    """The ProxyCommand that goes through `hop` on its shared connection."""
    quoted = shlex.join([*command_to(hop), "-o", "BatchMode=yes"]).replace("%", "%%")
    return f"{quoted} -W '[%h]:%p' -- {shlex.quote(hop.host.login)}"


# ---------------------------------------------------------- sockets of shared connections


def socket_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the sockets, made if need be; it belongs to this user and to nobody else.

    StorageError when somebody else has taken its place.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if _suits(runtime):
        folder = Path(runtime, "shanty")
        try:
            return _made(folder)
        except OSError:
            pass  # a session that has ended, or one of another user (su): /tmp will do
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
    """True for a folder whose name ssh takes as it is, and that leaves room for a socket's."""
    plain = not set(runtime) & set(" \t\"%'\\$~#")
    room = len(os.fsencode(runtime)) + len("/shanty") <= _LONGEST
    return runtime.startswith("/") and plain and room and Path(runtime).is_dir()


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(None, "it belongs to somebody else")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
