"""Why a host could not be reached: ssh's words turned into a cause and a cure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shanty.launch.site.host import Host
from shanty.launch.site.porter import NoAnswerError


@dataclass(frozen=True, slots=True)
class Refusal:
    """A host that cannot be used, and why.

    `code` is a first word of the table below, one of `_other_cause`, or "ssh" for an error of
    the configuration here.
    """

    host: Host
    code: str
    what: str  # after "HOST: "
    fix: str = ""
    detail: str = ""  # what ssh or the host said itself

    @property
    def asks_for_a_person(self) -> bool:
        """True where somebody at a terminal can help: a password, or an unknown host key."""
        return self.code in ("key-refused", "host-key-unknown")


# What ssh says when a ProxyCommand ended; the words of that command are lost on a shared one.
UNKNOWN_END = r"UNKNOWN port 65535"
# code, what ssh says, what it means, what to do. The first that matches counts, so the words of
# a jump host, after which ssh adds some of its own, stand first.
_TABLE: tuple[tuple[str, str, str, str], ...] = (
    (
        "host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for \S+ has changed",
        "its host key is not the one that is known",
        "if the host was set up anew, forget the old key: {forget}",
    ),
    (
        "host-key-unknown",
        r"Host key verification failed|No \S+ host key is known",
        "its host key is not known yet",
        "log in once and compare the key: ssh {login}",
    ),
    (
        "key-refused",
        r"Permission denied|Too many authentication failures|No more authentication methods",
        "it takes none of your keys",
        "log in once with a password, or: ssh-copy-id {login}",
    ),
    (
        "jump-refused",
        r"administratively prohibited",
        "the jump host does not pass connections on",
        "it needs AllowTcpForwarding yes in its sshd_config, and a way to the host",
    ),
    (
        "unresolved",
        r"Could not resolve hostname|[Nn]ame or service not known|nodename nor servname",
        "its name does not resolve",
        "look at the spelling, or give an address",
    ),
    (
        "refused",
        r"Connection refused",
        "nothing listens for ssh there",
        "start sshd on it, or give its port (~/.ssh/config, or ssh://HOST:PORT)",
    ),
    (
        "silent",
        r"timed out during banner exchange",
        "something takes the connection, but no ssh server answers",
        "the host may be frozen or overloaded: look at it by other means",
    ),
    (
        "unreachable",
        r"timed out|No route to host|[Nn]etwork is unreachable|Host is down|not responding",
        "it cannot be reached",
        "see whether it is up and on this network: ping {name}",
    ),
    (
        "jump-refused",
        r"[Ss]tdio forwarding",
        "the jump host gets no connection to it",
        "see whether it is up, and reachable from the jump host",
    ),
    (
        "proxy",
        UNKNOWN_END,
        "what its connection goes through (ProxyCommand) ends before the login",
        "see what `ssh -v {login}` says",
    ),
    (
        "no-ssh",
        r"banner|Bad packet length|Protocol major versions differ|invalid format",
        "what answers on that port is no ssh server",
        "give the port of its sshd (~/.ssh/config, or ssh://HOST:PORT)",
    ),
    (
        "dropped",
        r"[Cc]onnection (closed|reset)|closed by remote host|Broken pipe",
        "it drops the connection before the login",
        "its sshd may be overloaded (MaxStartups) or keep this address out: look at its log",
    ),
    (
        "no-cipher",
        r"no matching|Unable to negotiate",
        "its ssh and the one here have no method in common",
        "name one in ~/.ssh/config (KexAlgorithms, HostKeyAlgorithms, Ciphers)",
    ),
    (
        "configuration",
        r"Bad configuration option|bad permissions|Bad owner|terminating, \d+ bad",
        "ssh rejects its own configuration",
        "see what `ssh {login}` says",
    ),
)


def refusal(
    host: Host, error: NoAnswerError, forget: Sequence[str] = ("ssh-keygen", "-R")
) -> Refusal:
    """Why `host` did not answer; `forget` is the command that forgets the key that it had."""
    detail = error.text
    if error.kind == "ended" and error.code in (255, None):
        for code, pattern, what, fix in _TABLE:
            if re.search(pattern, detail):
                names = {
                    "login": shlex.quote(host.login),
                    "name": shlex.quote(host.name),
                    "forget": shlex.join(forget),
                }
                return Refusal(host, code, what, fix.format(**names), _last_lines(detail))
    code, what, fix = _other_cause(host, error)
    return Refusal(host, code, what, fix, _last_lines(detail) if error.kind != "python" else "")


def _other_cause(host: Host, error: NoAnswerError) -> tuple[str, str, str]:
    """For what ssh itself did not refuse."""
    if error.kind == "python":
        pairs = [seen.rpartition(",") for seen in error.text.split()]
        seen = ", ".join(f"{path} is {version}" for path, _, version in pairs)
        what = "it has no Python of version 3.9 or newer" + (f" ({seen})" if seen else "")
        return "no-python", what, "install one: its package is called python3 on most systems"
    if error.kind == "storage":
        what = f"shanty's files cannot be written there: {error.text}"
        return "storage", what, "free some space there, or make the folder writable"
    if error.kind == "silent":
        what = "it took the connection and then said nothing"
        return "silent", what, f"see whether a login works: ssh {host.login} true"
    if error.code == 0:
        what = "its login ran no command, and ended well"
        return "no-command", what, "shanty needs a login that runs commands"
    what = f"the login ended with {error.code} before it said anything"
    return "no-command", what, f"see what a command does there: ssh {host.login} true"


def _last_lines(text: str, count: int = 3) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip().strip("@")]
    return " / ".join(lines[-count:])
