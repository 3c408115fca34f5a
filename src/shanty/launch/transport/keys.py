"""The key pair of a run, and the host keys by which its lead host knows the other hosts."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shanty.runtime.errors import PrepareError

_TIME_LIMIT = 30  # seconds; ssh-keygen may have to wait for a network home


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An ed25519 pair: `private` in OpenSSH's format, `public` as "ssh-ed25519 AAAA…"."""

    private: bytes
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"  # so tracebacks do not show the private half


def make_pair(folder: Path) -> KeyPair:
    """A new pair; for a moment it is in a temporary folder, mode 0700, below `folder`."""
    with tempfile.TemporaryDirectory(prefix=".key-", dir=folder) as place:
        file = Path(place, "key")
        done = keygen("-q", "-t", "ed25519", "-N", "", "-C", "shanty", "-f", str(file))
        if done.returncode:
            raise PrepareError("ssh-keygen could not make the run's key", done.stderr.strip())
        words = file.with_suffix(".pub").read_text(encoding="ascii").split()
        return KeyPair(file.read_bytes(), " ".join(words[:2]))


def options_lacking(banner: str) -> tuple[str, ...]:
    """The options of authorized_keys that an sshd does not support, by the banner that it sends.

    They are for the argument `without` of the verb `authorize`: sshd ignores a line with an option
    that it does not know. Callers should report them to the user.
    """
    found = re.match(r"SSH-[\d.]+-OpenSSH_(\d+)\.(\d+)", banner)
    if found is None:
        return ("restrict", "from", "expiry-time")
    version = (int(found[1]), int(found[2]))
    lacking = (("restrict", (7, 2)), ("expiry-time", (7, 7)))
    return tuple(option for option, since in lacking if version < since)


def known_hosts_lines(
    resolved: Mapping[str, str], pattern: str, host_keys: Sequence[str] = ()
) -> list[str]:
    """Lines of a known_hosts file for the host name `pattern`, for `-o HostKeyAlias=pattern`.

    `resolved` is the output of `ssh -G` for the host (names in lower case). The keys are those by
    which ssh knows the host here, including revoked keys. `host_keys` ("TYPE BASE64" each, from the
    verb `host-keys`) are used if ssh has no plain key of the host, as with host certificates: they
    came through a connection on which the host was verified. They replace the known ones if ssh
    accepts any key, since those may be out of date.
    """
    lines = []
    trusted = False
    wanted = ("@revoked",) if host_keys and accepts_any(resolved) else ("", "@revoked")
    for marker, key in _known(resolved):
        if marker in wanted:
            line = " ".join(word for word in (marker, pattern, key) if word)
            if line not in lines:
                lines.append(line)
            trusted = trusted or not marker
    if not trusted:
        lines += [f"{pattern} {' '.join(key.split()[:2])}" for key in host_keys]
    return lines


def accepts_any(resolved: Mapping[str, str]) -> bool:
    """True if the user lets ssh accept any host key (StrictHostKeyChecking no)."""
    return resolved.get("stricthostkeychecking", "") in ("no", "off", "false")


def known_name(resolved: Mapping[str, str]) -> str:
    """The name under which ssh keeps the host's key: NAME, [NAME]:PORT, or its HostKeyAlias."""
    alias = resolved.get("hostkeyalias", "")
    if alias and alias != "none":
        return alias
    name, port = resolved["hostname"].lower(), resolved.get("port", "22")
    return name if port == "22" else f"[{name}]:{port}"


def _known(resolved: Mapping[str, str]) -> list[tuple[str, str]]:
    """(marker, "TYPE BASE64") of every line about the host in the files that ssh reads."""
    found = []
    for setting in ("userknownhostsfile", "globalknownhostsfile"):
        for name in _words(resolved.get(setting, "")):
            path = Path(name).expanduser()
            if name == "none" or not path.is_file():
                continue
            done = keygen("-F", known_name(resolved), "-f", str(path))
            lines = [] if done.returncode else done.stdout.splitlines()
            for words in (line.split() for line in lines if not line.startswith("#")):
                marker = words.pop(0) if words and words[0].startswith("@") else ""
                if len(words) >= 3:
                    found.append((marker, " ".join(words[1:3])))
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def keygen(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ssh-keygen; PrepareError if it is missing, or takes too long."""
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", errors="replace", timeout=_TIME_LIMIT, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise PrepareError(
            "ssh-keygen not found on this machine",
            "runs on other machines need OpenSSH",
            "install it (Debian, Ubuntu: openssh-client)",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PrepareError(f"ssh-keygen did not end within {_TIME_LIMIT} s") from error


def alias(number: int) -> str:
    """The name under which the lead host knows the host key of a host of its run."""
    return f"shanty-{number}"
