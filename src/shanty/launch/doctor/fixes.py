"""Repairs findings (`shanty doctor --fix`); asks before it changes who trusts whom."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shanty.launch import interpreter
from shanty.launch.doctor.check import Report
from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.finding import Finding
from shanty.launch.transport import connect, openssh
from shanty.launch.transport.keys import keygen
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError, ShantyError, StorageError
from shanty.runtime.file_edit import edit_file
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec

_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of repairing one finding."""

    code: str
    host: str
    done: tuple[str, ...] = ()
    error: ShantyError | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the repair as plain JSON."""
        error = self.error.what if self.error is not None else ""
        return {"code": self.code, "host": self.host, "done": list(self.done), "error": error}


@dataclass
class Repairer:
    """Repairs the findings of reports; each finding once.

    `consent` asks the user for permission, `knows` whether a host's key is right. `say` gets what
    was done, `progress` what is being done, "" at the end.
    """

    job: JobSpec
    hosts: Sequence[Host]
    home: Path
    environ: Mapping[str, str]
    consent: Callable[[str], bool]
    knows: Callable[[str, str], bool]  # gets a host and the fingerprint of its key
    say: Callable[[str], None]
    progress: Callable[[str], None]
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def repair(self, report: Report) -> list[Repair]:
        """Repairs all fixable findings that are new; leaves out those that the user refused."""
        wanted: dict[str, list[Finding]] = {}
        for each in report.findings:
            if each.fixable and (each.code, each.host) not in self._seen:
                wanted.setdefault(each.code, []).append(each)
                self._seen.add((each.code, each.host))
        done: list[Repair] = []

        def note(code: str, host: str, texts: Sequence[str]) -> None:
            for text in texts:
                self.say(f"{host or 'here'}: {text}")
            if texts:
                done.append(Repair(code, host, tuple(texts)))

        for code, repair in _REPAIRS.items():
            for finding in wanted.get(code, ()):
                try:
                    note(code, finding.host, repair(self, finding))
                except ShantyError as error:
                    done.append(Repair(code, finding.host, error=error))
        differing = [each.host for each in wanted.get(_PACKAGES, ())]
        try:
            for name, path in self._alike(differing).items():  # all hosts at once
                note(_PACKAGES, name, [f"the environment of this machine is at {path}"])
        except ShantyError as error:
            done += [Repair(_PACKAGES, name, error=error) for name in differing]
        return done

    # ------------------------------------------------------------------------- trust

    def close_keys(self, _finding: Finding) -> list[str]:
        """Makes the private keys that ssh uses for the hosts readable by their owner only."""
        done = []
        for path in dict.fromkeys(path for host in self.hosts for path in _identity_files(host)):
            if stat.S_IMODE(path.stat().st_mode) & _OTHERS and path.stat().st_uid == os.getuid():
                path.chmod(0o600)
                done.append(f"only you may read {path} now")
        return done

    def remember_host(self, finding: Finding) -> list[str]:
        """Keeps the key of a host, after the user has compared it."""
        host = self._host(finding.host)
        offered = offered_key(host)
        if not self.knows(host.name, offered.fingerprint):
            return []
        return [f"its host key {offered.fingerprint} is in {remember(host, offered)}"]

    def authorize(self, finding: Finding) -> list[str]:
        """Adds the user's public key to authorized_keys; ssh asks for the password."""
        host = self._host(finding.host)
        path, key = _public_key(host)
        if not self.consent(f"put your key {path} into ~/.ssh/authorized_keys on {host.name}"):
            return []
        (outcome,) = connect.attempt([host], terminal=True)
        if not isinstance(outcome, RpcClient):
            raise connect.failure([outcome], 1)
        try:
            return _done(outcome, "add-key", key=key)
        finally:
            outcome.close()
            outcome.connection.close()  # the next login has to use the key

    # -------------------------------------------------------------------- on a host

    def on_host(self, finding: Finding) -> list[str]:
        """Lets the host do it."""
        with self._client(finding.host) as client:
            return _done(client, _BY_THE_HOST[finding.code])

    def comment_out(self, finding: Finding) -> list[str]:
        """Makes settings that break runs into comments."""
        from shanty.launch.doctor.hosts import harmful

        with self._client(finding.host) as client:
            host = self._host(finding.host)
            seen = Seen(host, client.ask("survey").values, client.ask("health").values)
            need = Need(hosts=tuple(each.name for each in self.hosts))
            own = seen.survey["home"].rstrip("/") + "/"
            found = [[s.file, s.name] for s in harmful(seen, need) if s.file.startswith(own)]
            return _done(client, "comment-out", settings=found) if found else []

    def _alike(self, names: Sequence[str]) -> Mapping[str, str]:
        from shanty.launch.content import environment

        if not names:
            return {}
        clients = connect.connect([self._host(name) for name in names], terminal=False)
        try:
            environ = {**self.environ, **self.job.env}
            python = interpreter.choose(self.job.python, Path(self.job.workdir), environ)
            here = environment.local_environment(python, self.home)
            return environment.sync(
                clients, here, self.home, lambda step: self.progress(str(step)), environ
            )
        finally:
            self.progress("")
            for client in clients:
                client.close()

    def _host(self, name: str) -> Host:
        return next((host for host in self.hosts if host.name == name), Host("localhost"))

    @contextmanager
    def _client(self, name: str) -> Iterator[RpcClient]:
        (client,) = connect.connect([self._host(name)], terminal=False)
        try:
            yield client
        finally:
            client.close()


def _done(client: RpcClient, what: str, **args: Any) -> list[str]:
    values = client.ask("repair", what=what, **args).values
    if not values["done"]:
        raise PrepareError(f"nothing on {client.host.name} could be repaired")
    return list(values["done"])


class OfferedKey(NamedTuple):
    """The key of a host: its fingerprint, and its lines for known_hosts."""

    fingerprint: str
    lines: bytes


def _identity_files(host: Host) -> list[Path]:
    names = openssh.resolved(host).get("identityfile", "").splitlines()
    paths = [Path(name.strip('"')).expanduser() for name in names]
    return [path for path in paths if path.exists()]


def _public_key(host: Host) -> tuple[Path, str]:
    """Returns the first key that ssh would offer: its file, and the line for authorized_keys."""
    for path in _identity_files(host):
        beside = path.with_name(path.name + ".pub")
        if beside.is_file():
            return path, beside.read_text(encoding="utf-8").strip()
        done = keygen("-y", "-P", "", "-f", str(path))
        if done.returncode == 0:
            return path, done.stdout.strip()
    raise PrepareError(
        "you do not have an ssh key",
        f"ssh finds none for {host.name}",
        "make one: ssh-keygen -t ed25519",
    )


def offered_key(host: Host) -> OfferedKey:
    """Asks a host for its key, without logging in; PrepareError if it does not answer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "known_hosts")
        options = (
            *openssh.ALONE,
            f'UserKnownHostsFile="{file}"',
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=accept-new",
            "PreferredAuthentications=none",
            "BatchMode=yes",
        )
        argv = [*openssh.command_to(openssh.route_to(host), options), "--", host.login, "true"]
        said = openssh.said_by(argv, openssh.CONNECT_TIMEOUT + 5) or "no answer"
        lines = file.read_bytes() if file.exists() else b""
        shown = keygen("-l", "-f", str(file)) if lines else None
    if shown is None or shown.returncode:
        raise PrepareError(f"{host.name} does not send its host key", said)
    words = shown.stdout.split()
    return OfferedKey(f"{words[1]} {words[-1]}", lines)


def remember(host: Host, offered: OfferedKey) -> str:
    """Adds a host's key to the user's known hosts; returns the file's path. StorageError."""
    path = openssh.known_hosts_file(openssh.resolved(host))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path.parent} cannot be made", str(error)) from error

    def change(content: bytes | None) -> bytes:
        old = content or b""
        return old + (b"" if not old or old.endswith(b"\n") else b"\n") + offered.lines

    edit_file(str(path), change)
    return str(path)


_BY_THE_HOST = {
    "home-open": "close-home",
    **dict.fromkeys(("shm-full", "tmp-full"), "clear-leftovers"),
    "store-damaged": "clear-store",
    "strays": "end-orphans",
    **dict.fromkeys(("disk-full", "inodes-full"), "make-room"),
}
_PACKAGES = "packages-differ"
# The order of repairs on a host: logging in comes first.
_REPAIRS: Mapping[str, Callable[[Repairer, Finding], list[str]]] = {
    "key-open": Repairer.close_keys,
    "host-key-unknown": Repairer.remember_host,
    "password-needed": Repairer.authorize,
    **dict.fromkeys(_BY_THE_HOST, Repairer.on_host),
    "mpi-parameters": Repairer.comment_out,
}
