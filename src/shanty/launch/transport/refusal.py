"""Why a host cannot be reached: what the messages of ssh, and its silence, mean."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shanty.launch.transport.rpc_client import NoAnswerError
from shanty.runtime.site import Host

OF_SSH = 255  # the exit code of ssh when ssh itself failed
LATE = "late"  # the code of a host for which the time did not suffice
# ssh's message when a ProxyCommand ended; on a shared connection the command's own message is lost.
UNKNOWN_END = r"UNKNOWN port 65535"
# ssh's other messages on such an end; if there are only these, the host's sshd ended it.
_OWN_WORDS = ("kex_exchange_identification: ", "ssh_exchange_identification: ", "Connection ")
_OPEN_KEY = re.compile(r"Permissions \d+ for '([^']+)' are too open")
_LOGIN_FILES = "~/.bashrc, ~/.ssh/rc, /etc/ssh/sshrc and similar files"
_SHOWN = 80  # characters of a command
_LONGEST = 300  # characters of a line of output, which may have the whole command in it
_OTHER_SHELL = re.compile(r"^(zsh|fish|t?csh|ksh|xonsh|nu): ", re.MULTILINE)
_ITS_FILE = "the key's file"  # if ssh does not name it
_TRIED_BY_HAND = ("host-silent", "shell-broken")
_ACCOUNT = "account-closed"  # of which the host tells after the login, with any exit code
# What ssh says of a connection in any case.
_CHATTER = ("Warning: Permanently added", "Authenticated to", "Transferred: ", "Bytes per second")
# Code, pattern in ssh's messages, meaning, fix, and possibly a command. The first match counts, so
# messages of a jump host, to which ssh adds its own, come first.
TABLE: tuple[tuple[str, ...], ...] = (
    (
        "host-key-changed",
        r"[Hh]ost key for \S+ has changed",  # not the warning alone: it may be accepted
        "its host key has changed",
        "if the host was reinstalled, remove the old key",
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
        "make it readable by you only",
        "{close}",
    ),
    (
        "password-needed",
        r"Permission denied \([^)]*(?:password|keyboard-interactive)",
        "it does not accept your keys, only a password",
        "log in once with the password, or add your key there",
        "ssh-copy-id {login}",
    ),
    (
        _ACCOUNT,
        r"[Pp]assword has expired|[Pp]assword change required|change your password"
        r"|account has expired|Unprivileged users are not permitted|System is (booting|going)",
        "it lets nobody into this account at the moment",
        "log in once and do what it asks for, or ask its administrator",
        "ssh {login}",
    ),
    (
        "keys-too-many",
        r"Too many authentication failures",
        "it ended the login before it was offered the right key: ssh offered too many",
        "name the right key in ~/.ssh/config, with IdentityFile and `IdentitiesOnly yes`, or "
        "remove keys from the agent (ssh-add -D)",
    ),
    (
        "key-refused",
        r"Permission denied|No more authentication methods",
        "it does not accept your keys",
        "add your public key to ~/.ssh/authorized_keys there, or name the right key in "
        "~/.ssh/config (IdentityFile); sshd also refuses keys where others may write in the home "
        "or in ~/.ssh, and accounts that AllowUsers leaves out",
    ),
    (
        "jump-refused",
        r"administratively prohibited",
        "the jump host does not forward connections",
        "it needs AllowTcpForwarding yes in its sshd_config, and must reach the host",
    ),
    (
        "name-unknown",
        r"Could not resolve hostname|[Nn]ame or service not known|nodename nor servname"
        r"|failure in name resolution|No address associated with",
        "its name does not resolve",
        "check the spelling, or give an address",
    ),
    (
        "ssh-refused",
        r"Connection refused",
        "nothing listens on its ssh port",
        "start sshd on it, or give its port (~/.ssh/config, or ssh://HOST:PORT)",
    ),
    (
        "host-silent",
        r"timed out during banner exchange",
        "it accepts the connection, but its ssh server does not answer",
        "the host may be frozen or overloaded: check it on its console",
    ),
    (
        "host-unreachable",
        r"timed out|No route to host|[Nn]etwork is unreachable|Host is down|not responding",
        "it cannot be reached",
        "check that it is up and on this network",
        "ping {name}",
    ),
    (
        "jump-refused",
        r"[Ss]tdio forwarding",
        "the jump host cannot connect to it",
        "check that it is up, and reachable from the jump host",
    ),
    (
        "shell-broken",
        r"Session open refused by peer|connect failed: open failed",
        "its sshd accepts the login, and then opens no session for a command",
        "raise MaxSessions in its sshd_config",
    ),
    (
        "ssh-dropped",
        r"Exceeded MaxStartups|Not allowed at this time",
        "its sshd accepts no more logins at the moment",
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
        "its ProxyCommand ends before the login",
        "see what ssh says, and run the command by hand",
        "ssh -v {login}",
    ),
    (
        "not-ssh",
        r"banner|Bad packet length|Protocol major versions differ|invalid format",
        "another server than sshd answers on that port",
        "give the port of its sshd (~/.ssh/config, or ssh://HOST:PORT)",
    ),
    (
        "ssh-dropped",
        r"[Cc]onnection (closed|reset)|closed by remote host|Broken pipe",
        "it drops the connection before the login",
        "its sshd may be overloaded (MaxStartups) or block this address: see its log",
    ),
    (
        "ssh-configuration",
        r"Bad configuration option|bad permissions|Bad owner|terminating, \d+ bad",
        "ssh rejects its own configuration",
        "see what ssh says",
        "ssh {login}",
    ),
    (
        "ssh-configuration",
        r"bind[ :].*: Cannot assign requested address",
        "ssh's configuration here has a BindAddress, or a BindInterface, that this machine lacks",
        "correct it in ~/.ssh/config, or leave it out",
        "ssh {login}",
    ),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A host that cannot be used, and the reason.

    `code` is one of `finding.CODES`, or `LATE`.
    """

    host: Host
    code: str
    what: str  # after "HOST: "
    fix: str = ""
    detail: str = ""  # the message of ssh or the host
    command: str = ""  # a command that does the fix, to paste

    @property
    def whole_fix(self) -> str:
        """The fix, with its command."""
        return f"{self.fix}: {self.command}" if self.command else self.fix

    @property
    def asks_for_a_person(self) -> bool:
        """True if a user at a terminal can help: with a password, or for an unknown host key."""
        return self.code in ("key-refused", "key-locked", "password-needed", "host-key-unknown")


def known_cause(code: str) -> tuple[str, str, str]:
    """The code, its meaning, and the fix, from the last row of the table with that code."""
    row = next(row for row in reversed(TABLE) if row[0] == code)
    return code, row[2], row[3]


def refusal(
    host: Host, error: NoAnswerError, forget: Sequence[str] = ("ssh-keygen", "-R")
) -> Refusal:
    """The cause why `host` did not answer; `forget` is the command that removes its old key."""
    lines = error.text.splitlines()
    detail = "\n".join(line for line in lines if not line.startswith(_CHATTER))
    if error.kind == "ended":
        ended = all(line.startswith(_OWN_WORDS) for line in detail.splitlines())
        for code, pattern, what, fix, *command in TABLE:
            if error.code not in (OF_SSH, None) and code != _ACCOUNT:
                continue
            if re.search(pattern, detail) and not (code == "proxy-failed" and ended):
                keys = shlex.join(dict.fromkeys(_OPEN_KEY.findall(detail)))
                names = {
                    "login": login_words(host),
                    "name": shlex.quote(host.name),
                    "forget": shlex.join(forget),
                    "close": f"chmod 600 {keys or _ITS_FILE}",
                }
                fitting = "".join(command).format(**names)
                return Refusal(host, code, what, fix, _last_lines(detail), fitting)
    code, what, fix = _other_cause(host, error)
    told = ("python", "python-silent", "storage", "login-silent", "no-input", "no-output", "noise")
    detail = "" if error.kind in told else _last_lines(detail)
    by_hand = f"ssh {login_words(host)} true" if code in _TRIED_BY_HAND else ""
    return Refusal(host, code, what, fix, detail, by_hand)


def _other_cause(host: Host, error: NoAnswerError) -> tuple[str, str, str]:
    if error.kind == "python":
        seen = ", ".join(" is ".join(one.rsplit(",", 1)) for one in error.text.split())
        what = "it does not have Python 3.9 or newer" + (f" ({seen})" if seen else "")
        code = "python-old" if seen else "python-missing"
        return code, what, "install it: the package is called python3 on most systems"
    if error.kind == "python-silent":
        what = f"{error.text.partition(' ')[2]}, the first Python there, starts and does not answer"
        return "host-silent", what, "see why it hangs; shanty finds no other Python there"
    if error.kind == "storage":
        what = f"shanty's files cannot be written there: {error.text}"
        if error.text.endswith("does not exist"):
            fix = "make the home folder, or set SHANTY_HOME for logins there to a writable folder"
            return "home-readonly", what, fix
        full = "No space left" in error.text or "quota" in error.text
        code = "disk-full" if full else "home-readonly"
        code = "inodes-full" if "inodes" in error.text else code
        return code, what, "free some space there, or make the folder writable"
    if error.kind == "silent" and host.pod:
        what = "a command in it does not answer: its node may be overloaded or frozen"
        return "host-silent", what, f"check its node: kubectl describe pod {host.name}"
    if error.kind == "silent":
        what = "it accepted the connection and then was silent"
        return "host-silent", what, "check whether a login works"
    if error.kind == "login-silent":
        hangs = f"in `{error.text[:_SHOWN]}`" if error.text else "in one of its files"
        what = f"it accepted the login, which then ran no command: it hangs {hangs}"
        return "shell-broken", what, f"see what {_LOGIN_FILES} wait for"
    if error.kind == "no-input":
        what = "a file of its login reads the input that is meant for the command"
        return (
            "shell-broken",
            what,
            f"put `[ -t 0 ] || return` before what reads, in {_LOGIN_FILES}",
        )
    if error.kind == "no-output":
        what = "a file of its login closes the standard output of the command, or redirects it"
        return "shell-broken", what, f"look for `exec` with > in {_LOGIN_FILES}"
    if error.kind == "noise":
        what = "a file of its login prints more than 1 MiB before the command runs"
        return (
            "shell-broken",
            what,
            f"put `[ -t 1 ] || return` before what prints, in {_LOGIN_FILES}",
        )
    if error.said and error.code == 0:
        what = f"its login ran something else than the command: it printed {error.said[:_SHOWN]!r}"
        fix = (
            "look for command= before the key in ~/.ssh/authorized_keys there, ForceCommand in its "
            f"sshd_config, and `exec` or `exit` in {_LOGIN_FILES}"
        )
        return "shell-broken", what, fix
    if error.said:
        what = f"the login ended with {error.code} and printed {error.said[:_SHOWN]!r}"
        return "shell-broken", what, "see what a command does there"
    if error.code == 0:
        what = "its login did not run the command, and ended with 0"
        return "shell-broken", what, "shanty needs a login that runs commands"
    other = _OTHER_SHELL.search(error.text)
    if other is not None:
        what = f"its login gave the command to {other[1]}, which cannot run it"
        fix = f"put `[ -t 0 ] || return` before `exec {other[1]}` in {_LOGIN_FILES}"
        return "shell-broken", what, fix
    if re.search(r"\bsh: (command )?not found", error.text):
        what = "its login does not find sh: a file of it sets a PATH without the system's folders"
        return "shell-broken", what, f"add /usr/bin and /bin to PATH in {_LOGIN_FILES}"
    what = f"the login ended with {error.code} without output"
    return "shell-broken", what, "see what a command does there"


def login_words(host: Host) -> str:
    """The arguments of `ssh` or `ssh-copy-id` for a host."""
    options = ["-F", host.config] if host.config else []
    return shlex.join([*options, *(["-p", str(host.port)] if host.port else []), host.login])


def _last_lines(text: str, count: int = 3) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip().strip("@")]
    return " / ".join(line[:_LONGEST] for line in lines[-count:])
