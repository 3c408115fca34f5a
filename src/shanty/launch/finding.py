"""One result of a check, its codes and text, and the error that findings are for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from shanty.runtime.errors import PrepareError

# What each code means.
CODES: Mapping[str, str] = {
    # Getting there
    "name-unknown": "the host's name does not resolve",
    "host-unreachable": "nothing answers at the host's address",
    "host-silent": "the host accepts a connection and then sends nothing: frozen, or overloaded",
    "ssh-refused": "the host is up, but nothing listens on its ssh port",
    "ssh-filtered": "the host is up, but its ssh port does not answer: a firewall",
    "ssh-dropped": "sshd closes the connection before the login (MaxStartups, or a ban)",
    "not-ssh": "the program that listens on that port is not an ssh server",
    "ssh-mismatch": "the two ssh programs have no method in common",
    "ssh-configuration": "ssh rejects its own configuration",
    "ssh-missing": "an ssh program is missing where one is needed",
    "host-key-unknown": "the host's key is not in known_hosts",
    "host-key-changed": "the host's key differs from the known one",
    "key-refused": "the host takes none of the user's keys",
    "keys-too-many": "ssh offered the host so many keys that it ended the login",
    "key-locked": "the user's key has a passphrase, and no agent has the key",
    "certificate-expired": "the certificate of the user's key is not valid any more, or not yet",
    "account-closed": "the host lets the user in only after something is done (expired password)",
    "key-open": "ssh ignores the user's key, because others may read its file",
    "password-needed": "the host lets the user in by password only",
    "proxy-failed": "what the connection goes through (ProxyCommand) ends before the login",
    "jump-refused": "a jump host does not pass connections on",
    "cluster-version": "which version of Kubernetes a cluster has",
    "cluster-forbidden": "the user may not do in the namespace what runs need",
    "cluster-security": "the namespace's Pod Security lets no root in",
    "cluster-policies": "a network policy may keep the pods of a run apart",
    "cluster-quota": "what a quota of the namespace leaves",
    "cluster-strays": "a Job of a run that is over is still there",
    "cluster-image": "pods of the image do not start",
    "cluster-shm": "pods have little shared memory",
    "cluster-reach": "the pods of a run do not reach each other",
    "pod-refused": "the cluster does not let us into the pod, or does not answer",
    "shell-noise": "the login shell prints text in a session without a terminal",
    "shell-broken": "the login shell runs no commands",
    "python-missing": "the host has no Python",
    "python-old": "the host's Python is older than 3.9",
    # The host itself
    "arch-differs": "the host has another processor architecture",
    "libc-old": "the host has an older C library than what is brought needs, or another one",
    "home-readonly": "nothing can be written in the user's home on the host",
    "home-noexec": "the disk of the user's home lets no programs be run (noexec)",
    "disk-full": "the disk of the user's home is full, or nearly",
    "inodes-full": "the disk of the user's home has no inodes left",
    "home-open": "others may write in the user's home or .ssh, so sshd may refuse keys there",
    "tmp-full": "/tmp is full, cannot be written, or has no inodes left",
    "tmp-noexec": "/tmp is mounted noexec",
    "shm-small": "/dev/shm is too small for the ranks' shared memory",
    "shm-full": "/dev/shm is full",
    "files-limit": "a process may open too few files",
    "processes-limit": "the user may have too few processes",
    "memory-limit": "a process may use too little memory (ulimit -v or -m)",
    "clock-off": "the host's clock is off",
    "memory-short": "the host has less memory than its ranks need",
    "gpus-short": "the host has fewer GPUs than ranks",
    "slots-over-cores": "the host gets more ranks than it has cores",
    "mpi-parameters": "a file of MPI settings in the home, or the login's environment, breaks runs",
    "strays": "processes of a run that ended are still there",
    "workaround": "something there hangs or was damaged, and was avoided or repaired",
    # MPI and packages
    "mpi-missing": "the MPI that the run takes is not on the host, and cannot be brought",
    "mpi-version": "the host has another version of the MPI than the lead host",
    "mpi-launcher-only": "the host has the launcher of an MPI without its library",
    "mpi-clobbered": "two MPIs were installed into one Python environment",
    "store-damaged": "files of what shanty keeps on the host are gone, or are not what they were",
    "packages-differ": "the host's Python packages are not those here",
    # Between hosts
    "same-host": "two names stand for one machine",
    "address-twice": "two hosts have the same address",
    "same-host-key": "two hosts have the same ssh host key",
    "name-loopback": "the host's own name means 127.x.x.x to itself",
    "name-differs": "a host's name means another address on another host",
    "lead-blocked": "the lead host does not get to another host's sshd",
    "run-key-refused": "a host's sshd does not take the key that a run puts into authorized_keys",
    "port-blocked": "connections between two hosts are held back on the ports that MPI uses",
    "mtu-blackhole": "large packets between two hosts vanish",
    "net-none": "no network joins all hosts",
    "net-dead": "an interface is up but leads to no other host",
    "net-isolated": "a virtual network has the same address on several hosts",
    "net-slow": "the network that joins the hosts is slow",
    "ipv6-only": "the hosts are joined by IPv6 only, which the chosen MPI cannot use",
    "flag-interface": "a setting names a network interface that does not join the hosts",
}
# What an error (on the left) explains on the same host.
EXPLAINS: Mapping[str, tuple[str, ...]] = {
    "home-readonly": ("disk-full", "inodes-full", "run-key-refused"),
    "disk-full": ("run-key-refused",),
    "inodes-full": ("run-key-refused",),
    "lead-blocked": ("run-key-refused",),
    "address-twice": ("lead-blocked", "run-key-refused", "port-blocked"),
}


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # a run cannot work, or will hang
    WARNING = "warning"  # a run works, but slower than it could, or some scripts will fail
    NOTE = "note"  # worth knowing; shanty deals with it by itself


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    `code` is stable and one of `CODES`; `host` is what the user calls the host, ""
    for the machine at which the command was typed. `what` is one sentence without a full stop,
    `evidence` what was seen, `fix` what to do. `command` is a command to paste that does it, ""
    where there is none; `fixable` says that `shanty doctor --fix` does it.
    """

    code: str
    level: Level
    host: str
    what: str
    evidence: str = ""
    fix: str = ""
    command: str = ""
    fixable: bool = field(default=False, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Returns the finding as plain JSON."""
        return {**asdict(self), "level": self.level.value}


class FoundError(PrepareError):
    """A run cannot work; the error says all that the checks found."""


def refused(errors: Sequence[Finding]) -> FoundError:
    """Makes one error of the findings that keep a run from working."""
    if len(errors) == 1:
        (one,) = errors
        return FoundError(f"{_with_host(one)} [{one.code}]", one.evidence, one.fix)
    indent = "\n       "
    return FoundError(
        f"{len(errors)} things keep this run from working",
        indent.join(f"{_with_host(one)} [{one.code}]" for one in errors),
        indent.join(dict.fromkeys(f"{one.host}: {one.fix}" for one in errors if one.fix)),
    )


def sentence(finding: Finding) -> str:
    """Returns a finding in one line."""
    evidence = f" ({finding.evidence})" if finding.evidence else ""
    fix = f"; {finding.fix}" if finding.fix else ""
    return f"{_with_host(finding)}{evidence}{fix} [{finding.code}]"


def tell(found: Sequence[Finding], warn: Callable[[str], None]) -> None:
    """Passes warnings to `warn`; FoundError where there are errors."""
    errors = [each for each in found if each.level is Level.ERROR]
    if errors:
        raise refused(errors)
    for each in found:
        if each.level is Level.WARNING:
            warn(sentence(each))


def _with_host(finding: Finding) -> str:
    return f"{finding.host}: {finding.what}" if finding.host else finding.what


def without_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings without those that an error on the same host explains."""
    every = list(findings)
    errors = [each for each in every if each.level is Level.ERROR]
    explained = {(code, each.host) for each in errors for code in EXPLAINS.get(each.code, ())}
    return [each for each in every if (each.code, each.host) not in explained]
