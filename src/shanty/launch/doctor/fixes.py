"""`shanty doctor --fix`: does what is safe, and asks before it changes whom somebody trusts.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shanty.launch import interpreter
from shanty.launch.cluster import contact
from shanty.launch.cluster.host import Host
from shanty.launch.cluster.parallel import Step
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.doctor import trust
from shanty.launch.doctor.check import Report
from shanty.launch.finding import Finding
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

Consent = Callable[[str], bool]  # is given a question; True is yes
Knows = Callable[[str, str], bool]  # is given a host and the fingerprint of the key that it shows


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about a finding, or why that did not succeed."""

    code: str
    host: str
    done: tuple[str, ...] = ()
    error: ShantyError | None = None

    def to_json(self) -> dict[str, Any]:
        """The repair as plain JSON."""
        error = self.error.what if self.error is not None else ""
        return {"code": self.code, "host": self.host, "done": list(self.done), "error": error}


class Surgery:
    """Treats the findings of one report after the other; each finding once.

    `consent` answers questions, `knows` says whether a host's key is the right one, `say` hears
    what was done, `progress` what is being done, "" at the end.
    """

    def __init__(
        self,
        job: JobSpec,
        hosts: Sequence[Host],
        home: Path,
        environ: Mapping[str, str],
        consent: Consent,
        knows: Knows,
        say: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> None:
        self._job = job
        self._hosts = {host.name: host for host in hosts}
        self._home = home
        self._environ = environ
        self._consent = consent
        self._knows = knows
        self._say = say
        self._progress = progress
        self._treated: set[tuple[str, str]] = set()

    def treat(self, report: Report) -> list[Repair]:
        """Treat what can be treated and was not yet; what was refused is left out."""
        wanted: dict[str, list[Finding]] = {}
        for each in report.findings:
            if each.fixable and (each.code, each.host) not in self._treated:
                wanted.setdefault(each.code, []).append(each)
                self._treated.add((each.code, each.host))
        done = []
        for code, treatment in _TREATMENTS.items():
            for finding in wanted.get(code, ()):
                try:
                    texts = treatment(self, finding)
                except ShantyError as error:
                    done.append(Repair(code, finding.host, error=error))
                    continue
                for text in texts:
                    self._say(f"{finding.host or 'here'}: {text}")
                if texts:
                    done.append(Repair(code, finding.host, tuple(texts)))
        if wanted.get(_PACKAGES):
            done += self._alike(wanted[_PACKAGES])  # all hosts at once
        return done

    # ------------------------------------------------------------------------- trust

    def close_keys(self, _finding: Finding) -> list[str]:
        """Let nobody else read the private keys that ssh uses for the hosts."""
        return trust.close_keys(self._hosts.values())

    def know(self, finding: Finding) -> list[str]:
        """Keep the key of a host, once a person has compared it."""
        host = self._hosts[finding.host]
        offered = trust.offered_key(host)
        if not self._knows(host.name, offered.fingerprint):
            return []
        path = trust.remember(host, offered)
        return [f"its host key {offered.fingerprint} is in {path}"]

    def let_in(self, finding: Finding) -> list[str]:
        """Put the user's public key where the host's sshd finds it; ssh asks for the password."""
        host = self._hosts[finding.host]
        public = trust.public_key(host)
        question = f"put your key {public.path} into ~/.ssh/authorized_keys on {host.name}"
        if not self._consent(question):
            return []
        (outcome,) = contact.attempt([host], terminal=True)
        if not isinstance(outcome, RpcClient):
            raise contact.failure([outcome], 1)
        try:
            return _done(outcome, "let-in", key=public.text)
        finally:
            outcome.close()
            outcome.connection.close()  # the next login is to be one by the key

    # -------------------------------------------------------------------- on a host

    def on_host(self, finding: Finding) -> list[str]:
        """Let the host do it."""
        with self._client(finding.host) as client:
            return _done(client, _BY_THE_HOST[finding.code])

    def comment_out(self, finding: Finding) -> list[str]:
        """Make settings that break runs into comments."""
        from shanty.launch.doctor.parameters import Place, harmful

        with self._client(finding.host) as client:
            survey = client.ask("survey").values
            health = client.ask("health").values
            lead = next(iter(self._hosts), "") in ("", finding.host)
            place = Place(survey["addresses"], survey["fabrics"], len(self._hosts) > 1, lead)
            own = survey["home"].rstrip("/") + "/"
            found = [
                [each.place, each.name]
                for each in harmful(health["settings"], place)
                if each.place.startswith(own)
            ]
            return _done(client, "comment-out", settings=found) if found else []

    def _alike(self, findings: Sequence[Finding]) -> list[Repair]:
        """Make the environment of this machine on all hosts that have another one."""
        from shanty.launch.cluster import environment, sync

        clients: list[RpcClient] = []

        def told(step: Step) -> None:
            self._progress(f"{step.host}: {step.what}, {step.done} of {step.total} {step.unit}")

        try:
            clients = contact.connect([self._hosts[each.host] for each in findings], terminal=False)
            environ = {**self._environ, **self._job.env}
            python = interpreter.choose(self._job.python, Path(self._job.workdir), environ)
            here = environment.local_environment(python, self._home)
            made = sync.sync(clients, here, self._home, told, environ)
        except ShantyError as error:
            return [Repair(_PACKAGES, each.host, error=error) for each in findings]
        finally:
            self._progress("")
            for client in clients:
                client.close()
        for name, path in made.items():
            self._say(f"{name}: the environment of this machine is at {path}")
        return [
            Repair(_PACKAGES, name, (f"the environment of this machine is at {path}",))
            for name, path in made.items()
        ]

    @contextmanager
    def _client(self, name: str) -> Iterator[RpcClient]:
        host = self._hosts.get(name, Host("localhost"))
        (client,) = contact.connect([host], terminal=False)
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
_TREATMENTS: Mapping[str, Callable[[Surgery, Finding], list[str]]] = {
    "key-open": Surgery.close_keys,
    "host-key-unknown": Surgery.know,
    "password-needed": Surgery.let_in,
    **dict.fromkeys(_BY_THE_HOST, Surgery.on_host),
    "mpi-parameters": Surgery.comment_out,
}
