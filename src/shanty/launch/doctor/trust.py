"""Reads, authorizes and remembers ssh keys of the user and of hosts."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shanty.launch.connections.openssh import (
    CONNECT_TIMEOUT,
    command_to,
    known_hosts_file,
    resolved,
    route_to,
)
from shanty.launch.host import Host
from shanty.runtime.errors import PrepareError, StorageError
from shanty.runtime.file_edit import edit_file

_OTHERS = 0o077
_ALONE = ("ControlMaster=no", "ControlPath=none")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key of the user's: the file of the pair, and the line for authorized_keys."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class OfferedKey:
    """The key that a host shows: its fingerprint, and its lines for known_hosts."""

    fingerprint: str
    lines: bytes


def identity_files(host: Host) -> list[Path]:
    """Returns the files of private keys that ssh may use for a host, and that are there."""
    names = resolved(host).get("identityfile", "").splitlines()
    return [
        path for path in (Path(name.strip('"')).expanduser() for name in names) if path.exists()
    ]


def close_keys(hosts: Iterable[Host]) -> list[str]:
    """Lets nobody but the user read the private keys for these hosts; returns what was done."""
    done = []
    for path in dict.fromkeys(path for host in hosts for path in identity_files(host)):
        if stat.S_IMODE(path.stat().st_mode) & _OTHERS and path.stat().st_uid == os.getuid():
            path.chmod(0o600)
            done.append(f"only you may read {path} now")
    return done


def public_key(host: Host) -> PublicKey:
    """Returns the public half of the first key that ssh would offer; PrepareError without one."""
    for path in identity_files(host):
        beside = path.with_name(path.name + ".pub")
        if beside.is_file():
            return PublicKey(path, beside.read_text(encoding="utf-8").strip())
        done = _keygen("-y", "-P", "", "-f", str(path))
        if done.returncode == 0:
            return PublicKey(path, done.stdout.strip())
    raise PrepareError(
        "you have no ssh key",
        f"ssh finds none for {host.name}",
        "make one: ssh-keygen -t ed25519",
    )


def offered_key(host: Host) -> OfferedKey:
    """Asks a host for its key, without logging in; PrepareError when it shows none."""
    route = route_to(host)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "known_hosts")
        options = (
            *_ALONE,
            f'UserKnownHostsFile="{file}"',
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=accept-new",
            "PreferredAuthentications=none",
            "BatchMode=yes",
        )
        argv = [*command_to(route, options), "--", host.login, "true"]
        try:
            said = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=CONNECT_TIMEOUT + 5, check=False,
            ).stderr  # fmt: skip
        except subprocess.TimeoutExpired:
            said = "no answer"
        lines = file.read_bytes() if file.exists() else b""
        shown = _keygen("-l", "-f", str(file)) if lines else None
    if shown is None or shown.returncode:
        raise PrepareError(f"{host.name} does not show its host key", said.strip())
    words = shown.stdout.split()
    return OfferedKey(f"{words[1]} {words[-1]}", lines)


def remember(host: Host, offered: OfferedKey) -> str:
    """Adds a host's key to the user's known hosts; returns the file's path. StorageError."""
    path = known_hosts_file(resolved(host))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path.parent} cannot be made", str(error)) from error

    def change(content: bytes | None) -> bytes:
        old = content or b""
        return old + (b"" if not old or old.endswith(b"\n") else b"\n") + offered.lines

    edit_file(str(path), change)
    return str(path)


def _keygen(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ssh-keygen", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=10, check=False,
    )  # fmt: skip
