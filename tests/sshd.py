"""Real sshds on loopback, for the user that runs the tests, each with keys of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from shanty.runtime import platform

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_key(path: Path, passphrase: str = "") -> str:
    """A new ed25519 pair at `path`; the public half."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path.with_name(path.name + ".pub").read_text()


class Sshd:
    """One server; what is placed through it goes below `folder`/home."""

    def __init__(self, folder: Path, *, addresses: int = 1, more: str = "") -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.port = free_port()
        self.home = folder / "home"
        self.host_key = make_key(folder / "host_key")
        self.authorized = folder / "authorized_keys"
        self.authorized.write_text(make_key(folder / "id"))
        self.log = folder / "log"
        self.addresses = [f"127.0.0.{number}" for number in range(1, addresses + 1)]
        listen = "".join(f"ListenAddress {address}\n" for address in self.addresses)
        (folder / "sshd_config").write_text(
            f"Port {self.port}\n{listen}HostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {self.authorized}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"UseDNS no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            f"SetEnv SHANTY_HOME={self.home}\n{more}\n"
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        assert SSHD is not None
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self._await_banner()

    def _await_banner(self) -> None:
        until = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    assert connection.recv(4) == b"SSH-"
                    return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise AssertionError(self.log.read_text()) from None
                time.sleep(0.02)

    def known(self, name: str = "") -> str:
        """The line of known_hosts for this server."""
        kind, key = self.host_key.split()[:2]
        names = name or ",".join(f"[{address}]:{self.port}" for address in self.addresses)
        return f"{names} {kind} {key}\n"

    def block(self, name: str, known: Path, address: str = "127.0.0.1", more: str = "") -> str:
        """A `Host` block for an ssh configuration."""
        return (
            f"Host {name}\n  HostName {address}\n  Port {self.port}\n"
            f"  IdentityFile {self.folder}/id\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {known}\n  GlobalKnownHostsFile /dev/null\n{more}\n"
        )

    def logins(self) -> int:
        """How many logins there have been."""
        return self.log.read_text().count("Accepted publickey")

    def freeze_sessions(self) -> None:
        """Stop the processes of all connections; the server itself takes new ones."""
        for entry in platform.descendants(self.process.pid):
            os.kill(entry.pid, signal.SIGSTOP)

    def stop(self) -> None:
        """End the server and all of its connections."""
        sessions = platform.descendants(self.process.pid)
        self.process.terminate()
        self.process.wait(10)
        platform.send(sessions, signal.SIGKILL)
