"""Bare launchers, with nothing said of networks, on hosts that have several."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hosts_bare import CURE, OPENMPI, PLACE, Bare
from hosts_lab import SHANTY, Home

HANGS = "hangs"
BOUND = 60  # seconds, after which one is said to hang; the slow network takes 20 of them

_SLOTS, _COUNTS = f"{PLACE}/slots", f"{PLACE}/counts"
_OPENMPI_LIBRARY = ("-x", "MPI4PY_LIBMPI={}/lib/libmpi.so.40")
_HYDRA_LIBRARY = ("-genv", "MPI4PY_LIBMPI", "{}/lib/libmpi.so.12")
# The launcher and its options, with {} for the MPI's folder, and its environment.
_LINES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "openmpi5": (("{}/bin/mpirun", "--hostfile", _SLOTS, *_OPENMPI_LIBRARY), {**OPENMPI, **CURE}),
    "openmpi4": (("{}/bin/mpirun", "--hostfile", _SLOTS, *_OPENMPI_LIBRARY), OPENMPI),
    "mpich": (("{}/bin/mpiexec.hydra", "-f", _COUNTS, *_HYDRA_LIBRARY), {}),
    "intel": (
        ("{}/bin/mpiexec.hydra", "-machinefile", _COUNTS, *_HYDRA_LIBRARY),
        {"I_MPI_ROOT": "{}"},
    ),
}
# Ends what a launcher that was killed leaves on a host: all that has PLACE in its command line.
_SWEEP = """
for folder in /proc/[0-9]*; do
    if tr '\\0' ' ' <$folder/cmdline 2>/dev/null | grep -q "$0/"; then
        [ ${folder#/proc/} = $$ ] || kill -9 ${folder#/proc/}
    fi
done
true
"""


def prepare(home: Home, lab: str, count: int, flavours: list[str], program: Path) -> Bare:
    """Keys for all hosts, and these MPIs and the program at one path on each."""
    bare = Bare(home, lab, count)
    bare.prepare(flavours, program)
    return bare


def allreduce(home: Home, bare: Bare, flavour: str) -> float | str:
    """The seconds that the program tells; else HANGS, or what was said last by one that fails."""
    argv, environ = _LINES[flavour]
    place = f"{PLACE}/{flavour}"
    words = [word.format(place) for word in argv]
    words += ["-n", str(len(bare.hosts)), sys.executable, bare.program]
    settings = [f"{name}={value.format(place)}" for name, value in environ.items()]
    limited = ["env", "-C", "/tmp", *settings, "timeout", "-s", "KILL", str(BOUND), *words]
    # Files, no pipes: what a killed launcher leaves behind holds its streams.
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        subprocess.run(
            [SHANTY, "lab", "exec", bare.hosts[0], *limited],
            env=home.environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
        out.seek(0)
        lines = [text for line in out.read().splitlines() if (text := line.strip("\0 -"))]
    took = time.monotonic() - began
    for host in bare.hosts:
        home.shanty("lab", "exec", host, "sh", "-c", _SWEEP, PLACE)
    told = [line.split()[1] for line in lines if line.startswith("median ")]
    if told:
        return float(told[0])
    return HANGS if took >= BOUND else f"fails after {took:.0f} s: {lines[-1:]}"
