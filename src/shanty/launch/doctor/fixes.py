"""Repairs findings (`shanty doctor --fix`); asks before it changes who trusts whom.

key-open            chmod 600 of the private key here
host-key-unknown    shows the key's fingerprint, and keeps it where a person knows it
password-needed     on a yes, lets the user's public key in, after one login by password
home-open           chmod go-w of the home, ~/.ssh and authorized_keys
mpi-parameters      makes the lines into comments, with a copy of the file beside it
shm-full, tmp-full  removes what dead MPI jobs left there
strays              ends processes of shanty's runs that ended
disk-full           removes what shanty keeps there and no run uses
packages-differ     makes the environment on the hosts, as `--env sync` does
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shanty.launch import interpreter
from shanty.launch.cluster import connect
from shanty.launch.cluster.parallel import Step
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.doctor import trust
from shanty.launch.doctor.check import Report
from shanty.launch.finding import Finding
from shanty.launch.host import Host
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

Consent = Callable[[str], bool]  # is given a question; True is yes
Knows = Callable[[str, str], bool]  # is given a host and the fingerprint of the key that it shows


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

    `consent` answers questions, `knows` says whether a host's key is the right one, `say` hears
    what was done, `progress` what is being done, "" at the end.
    """

    job: JobSpec
    hosts: Sequence[Host]
    home: Path
    environ: Mapping[str, str]
    consent: Consent
    knows: Knows
    say: Callable[[str], None]
    progress: Callable[[str], None]
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def repair(self, report: Report) -> list[Repair]:
        """Repairs what can be repaired and was not yet; leaves out what was refused."""
        wanted: dict[str, list[Finding]] = {}
        for each in report.findings:
            if each.fixable and (each.code, each.host) not in self._seen:
                wanted.setdefault(each.code, []).append(each)
                self._seen.add((each.code, each.host))
        done = []
        for code, repair in _REPAIRS.items():
            for finding in wanted.get(code, ()):
                try:
                    texts = repair(self, finding)
                except ShantyError as error:
                    done.append(Repair(code, finding.host, error=error))
                    continue
                for text in texts:
                    self.say(f"{finding.host or 'here'}: {text}")
                if texts:
                    done.append(Repair(code, finding.host, tuple(texts)))
        if wanted.get(_PACKAGES):
            done += self._alike(wanted[_PACKAGES])  # all hosts at once
        return done

    # ------------------------------------------------------------------------- trust

    def close_keys(self, _finding: Finding) -> list[str]:
        """Lets nobody else read the private keys that ssh uses for the hosts."""
        return trust.close_keys(self.hosts)

    def remember_host(self, finding: Finding) -> list[str]:
        """Keeps the key of a host, once a person has compared it."""
        host = self._host(finding.host)
        offered = trust.offered_key(host)
        if not self.knows(host.name, offered.fingerprint):
            return []
        path = trust.remember(host, offered)
        return [f"its host key {offered.fingerprint} is in {path}"]

    def authorize(self, finding: Finding) -> list[str]:
        """Puts the user's public key where the host's sshd finds it; ssh asks for the password."""
        host = self._host(finding.host)
        public = trust.public_key(host)
        question = f"put your key {public.path} into ~/.ssh/authorized_keys on {host.name}"
        if not self.consent(question):
            return []
        (outcome,) = connect.attempt([host], terminal=True)
        if not isinstance(outcome, RpcClient):
            raise connect.failure([outcome], 1)
        try:
            return _done(outcome, "add-key", key=public.text)
        finally:
            outcome.close()
            outcome.connection.close()  # the next login is to be one by the key

    # -------------------------------------------------------------------- on a host

    def on_host(self, finding: Finding) -> list[str]:
        """Asks the host to do it."""
        with self._client(finding.host) as client:
            return _done(client, _BY_THE_HOST[finding.code])

    def comment_out(self, finding: Finding) -> list[str]:
        """Makes settings that break runs into comments."""
        from shanty.launch.doctor.parameters import Surroundings, harmful

        with self._client(finding.host) as client:
            survey = client.ask("survey").values
            health = client.ask("health").values
            lead = not self.hosts or self.hosts[0].name == finding.host
            host = Surroundings(survey["addresses"], survey["fabrics"], len(self.hosts) > 1, lead)
            own = survey["home"].rstrip("/") + "/"
            found = [
                [each.file, each.name]
                for each in harmful(health["settings"], host)
                if each.file.startswith(own)
            ]
            return _done(client, "comment-out", settings=found) if found else []

    def _alike(self, findings: Sequence[Finding]) -> list[Repair]:
        """Makes the environment of this machine on all hosts that have another one."""
        from shanty.launch.cluster import environment

        clients: list[RpcClient] = []

        def told(step: Step) -> None:
            self.progress(f"{step.host}: {step.what}, {step.done} of {step.total} {step.unit}")

        try:
            clients = connect.connect([self._host(each.host) for each in findings], terminal=False)
            environ = {**self.environ, **self.job.env}
            python = interpreter.choose(self.job.python, Path(self.job.workdir), environ)
            here = environment.local_environment(python, self.home)
            made = environment.sync(clients, here, self.home, told, environ)
        except ShantyError as error:
            return [Repair(_PACKAGES, each.host, error=error) for each in findings]
        finally:
            self.progress("")
            for client in clients:
                client.close()
        for name, path in made.items():
            self.say(f"{name}: the environment of this machine is at {path}")
        return [
            Repair(_PACKAGES, name, (f"the environment of this machine is at {path}",))
            for name, path in made.items()
        ]

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
        raise PrepareError(f"there was nothing on {client.host.name} that could be mended")
    return list(values["done"])


_BY_THE_HOST = {
    "home-open": "close-home",
    "shm-full": "clear-leftovers",
    "tmp-full": "clear-leftovers",
    "strays": "end-strays",
    "disk-full": "make-room",
    "inodes-full": "make-room",
}
_PACKAGES = "packages-differ"
# Host by host, in this order: to get there comes first.
_REPAIRS: Mapping[str, Callable[[Repairer, Finding], list[str]]] = {
    "key-open": Repairer.close_keys,
    "host-key-unknown": Repairer.remember_host,
    "password-needed": Repairer.authorize,
    **dict.fromkeys(_BY_THE_HOST, Repairer.on_host),
    "mpi-parameters": Repairer.comment_out,
}
