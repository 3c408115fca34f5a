"""Causes and cures of a host that cannot be reached, by what ssh says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shanty.launch.cluster.rpc_client import NoAnswerError
from shanty.launch.host import Host


@dataclass(frozen=True, slots=True)
class Refusal:
    """A host that cannot be used, and why.

    `code` is one of `doctor.codes.CODES`.
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


# What ssh says when a ProxyCommand ended; the words of that command are lost on a shared one.
UNKNOWN_END = r"UNKNOWN port 65535"
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
        UNKNOWN_END,
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
    detail = _last_lines(detail) if error.kind not in ("python", "storage") else ""
    by_hand = f"ssh {login_words(host)} true" if code in _TRIED_BY_HAND else ""
    return Refusal(host, code, what, fix, detail, by_hand)


def _other_cause(host: Host, error: NoAnswerError) -> tuple[str, str, str]:
    """For what ssh itself did not refuse."""
    if error.kind == "python":
        seen = ", ".join(" is ".join(one.rsplit(",", 1)) for one in error.text.split())
        what = "it has no Python of version 3.9 or newer" + (f" ({seen})" if seen else "")
        code = "python-old" if seen else "python-missing"
        return code, what, "install one: its package is called python3 on most systems"
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
