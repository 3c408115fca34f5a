"""Bare launchers on the hosts of a lab, as an administrator would have set them up.

Every host gets a key that opens all of them, and finds each MPI at the same path.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hosts_lab import SHANTY, Home

SYSTEM = Path("/usr/bin/mpirun.openmpi")  # as Debian and Ubuntu call theirs
PLACE = "/tmp/bench"  # the same on all hosts, whose homes differ
BOUND = 60  # seconds for one run
OPENMPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
CURE = {"PRTE_MCA_odls_base_max_threads": "0"}  # else a part of its starts never end

# What tells the MPIs in shanty's store on a host from one another.
MARKERS = {
    "openmpi5": "bin/prterun",
    "openmpi4": "bin/orterun",
    "mpich": "bin/mpichversion",
    "intel": "bin/impi_info",
}

# Runs a command, and says when it began and ended: a console's own time is no part of it. The
# folder is one that all hosts have: Hydra's proxies fail without it.
STOPWATCH = """\
import subprocess, sys, time
began = time.time()
code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL, cwd="/tmp")
print("took", began, time.time(), file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class Peer:
    title: str
    argv: tuple[str, ...]
    environ: dict[str, str]


class Bare:
    """A lab that is ready for bare launchers; `prepare` it first."""

    def __init__(self, home: Home, lab: str, count: int) -> None:
        self._home = home
        self._lab = lab
        self.hosts = [f"{lab}{number}" for number in range(1, count + 1)]
        self.program = ""

    def prepare(self, flavours: Sequence[str], program: Path) -> None:
        """Keys; what shanty has put on each host of these MPIs, and `program`, in PLACE."""
        self.program = f"{PLACE}/{program.name}"
        self._let_hosts_in()
        for host in self.hosts:
            home = self._home.files(self._lab, host)
            shutil.copy(program, home)
            lines = [f"mkdir -p {PLACE}", f"cp ~/{program.name} {PLACE}"]
            for flavour in flavours:
                stored = self._stored(host, flavour).relative_to(home)
                lines += [f"mkdir {PLACE}/{flavour}"]
                lines += [f"mount --bind ~/{shlex.quote(str(stored))} {PLACE}/{flavour}"]
            hosts = " ".join(self.hosts)
            lines += [f"printf '%s slots=1\\n' {hosts} >{PLACE}/slots"]
            lines += [f"printf '%s:1\\n' {hosts} >{PLACE}/counts"]
            self._home.shanty("lab", "exec", host, "sh", "-euc", "\n".join(lines))

    def _stored(self, host: str, flavour: str) -> Path:
        """Where a host has an MPI, as it is seen from outside."""
        store = self._home.files(self._lab, host) / ".shanty" / "store" / "mpi"
        (marker,) = store.glob(f"*/{MARKERS[flavour]}")
        return marker.parents[1]

    def _let_hosts_in(self) -> None:
        first = self._home.files(self._lab, self.hosts[0]) / ".ssh"
        words = ["-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", str(first / "id")]
        subprocess.run(["ssh-keygen", *words], check=True)
        config = (
            "IdentityFile ~/.ssh/id\nIdentitiesOnly yes\nStrictHostKeyChecking yes\n"
            "LogLevel ERROR\n"
        )
        for host in self.hosts:
            folder = self._home.files(self._lab, host) / ".ssh"
            if folder != first:
                shutil.copy(first / "id", folder)
            shutil.copy(self._home.path / "lab" / self._lab / "known_hosts", folder)
            (folder / "config").write_text(config)
            with (folder / "authorized_keys").open("a") as keys:
                keys.write((first / "id.pub").read_text())

    def peers(self, flavours: Sequence[str]) -> list[Peer]:
        """The launchers that there are, Open MPI 5 first."""
        ranks = ("-n", str(len(self.hosts)))
        slots, counts = ("--hostfile", f"{PLACE}/slots"), ("-f", f"{PLACE}/counts")
        own = f"{PLACE}/openmpi5"
        library = ("-x", f"MPI4PY_LIBMPI={own}/lib/libmpi.so.40")
        version = _version(self._stored(self.hosts[0], "openmpi5") / "bin" / "mpirun")
        argv = (f"{own}/bin/mpirun", *slots, *ranks, *library)
        found = [Peer(f"bare Open MPI {version}", argv, {**OPENMPI, **CURE})]
        if SYSTEM.exists():
            title = f"bare Open MPI {_version(SYSTEM)}"
            found.append(Peer(title, (str(SYSTEM), *slots, *ranks), OPENMPI))
        else:
            print(f"not measured: there is no {SYSTEM}", file=sys.stderr)
        if "mpich" in flavours:
            version = _version(self._stored(self.hosts[0], "mpich") / "bin" / "mpiexec")
            launcher = f"{PLACE}/mpich/bin/mpiexec"
            found.append(Peer(f"bare MPICH {version}", (launcher, *counts, *ranks), {}))
        else:
            print("not measured: there is no MPICH (--mpis FOLDER)", file=sys.stderr)
        return found

    def run(self, peer: Peer, program: Sequence[str]) -> tuple[float, float, list[str]]:
        """Start a program on all hosts: when it began and ended, and its lines."""
        environ = [f"{name}={value}" for name, value in peer.environ.items()]
        words = ["env", *environ, "timeout", "-s", "KILL", str(BOUND), *peer.argv, *program]
        done = subprocess.run(
            [SHANTY, "lab", "exec", self.hosts[0], sys.executable, "-c", STOPWATCH, *words],
            env=self._home.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        began, ended = done.stderr.splitlines()[-1].split()[1:]
        return float(began), float(ended), done.stdout.splitlines()


def _version(launcher: Path) -> str:
    done = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    return found[0] if found else "of unknown version"
