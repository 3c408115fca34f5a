"""What a bare mpirun does with each planted fault: Open MPI 5, set up by hand on all hosts.

    python tests/lab/faults_bare.py [FAULT…]

Run by hand, it takes ten minutes; what it finds goes into `faults_bare.json` beside this file,
from where the documentation has it. Of a fault that is not named, what is there stays.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(_ROOT / "tests"), str(_ROOT / "tests/lab"), str(_ROOT / "benchmarks")]

import hosts_bare  # noqa: E402
from conftest import LabHome, LabHosts  # noqa: E402
from faults import TABLE  # noqa: E402
from faults_case import Fault  # noqa: E402
from faults_world import BARE_PLACE, World  # noqa: E402
from hosts_lab import Home, home  # noqa: E402

RESULTS = Path(__file__).with_name("faults_bare.json")
BOUND = 35  # seconds, after which a run is said to hang
RANKS = "3"
# 4 MiB summed up, then 256 KiB from each to each, so that every pair of hosts is in it.
ALLREDUCE = """
import array
from mpi4py import MPI
world = MPI.COMM_WORLD
data, total = array.array("d", [world.rank]) * (1 << 19), array.array("d", bytes(8 << 19))
world.Allreduce(data, total)
world.alltoall([bytes(1 << 18)] * world.size)
print("rank", world.rank, "of", world.size, "has", total[-1], flush=True)
"""


def measure(world: World, bare: hosts_bare.Bare, fault: Fault) -> dict[str, Any]:
    """What mpirun came to: how it ended, after how many seconds, and what it said first."""
    peer = bare.peers(["openmpi5"])[0]
    slots = _slots(fault)
    words = [word if word != RANKS else str(sum(slots.values())) for word in peer.argv]
    if "{" not in fault.on:  # the hosts are others than the lab's
        at = words.index("--hostfile")
        named = ",".join(f"{host}:{count}" for host, count in slots.items())
        words[at : at + 2] = ["--host", named]
    environ = [f"{name}={value}" for name, value in peer.environ.items()]
    program = [sys.executable, bare.program]
    argv = ["timeout", "-s", "KILL", str(BOUND), *words, *fault.bare_words, *program]
    # Files, no pipes: what a killed mpirun leaves behind holds its streams for ever.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "shanty", "lab", "exec", "lab1", "env", *environ, *argv],
            env=world.lab.shanty.environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
        )
        took = time.monotonic() - began
        for file in (out, errors):
            file.seek(0)
        printed, complaints = out.read(), errors.read()
    lines = [line for line in printed.splitlines() if line.startswith("rank ")]
    if done.returncode in (137, -9):
        how = "hangs"
    elif done.returncode:
        how = "fails"
    elif all(f"of {sum(slots.values())} " in line for line in lines):
        how = "works"
    else:
        how = "runs apart"  # N programs that each believe to be alone
    said = _first_words(complaints + printed) if how != "works" else ""
    return {"how": how, "code": done.returncode, "seconds": round(took, 1), "said": said}


def _slots(fault: Fault) -> dict[str, int]:
    """The slots of each host, as the fault's words for --on have them."""
    words = fault.on.format(lab="lab1,lab2,lab3").split(",")
    pairs = [word.partition(":") for word in words]
    return {name: int(count or 1) for name, _, count in pairs}


# Of what mpirun and ssh print, the words that tell most; else it is the first line.
_TELLS = re.compile(
    r"^ssh: |^kex_exchange|Permission denied|^Permissions |verification failed|No such file"
    r"|not available|mismatch|Error: |invalid value|No available|failed to TCP|bind that would"
)

_NOISE = re.compile(r"^rank |plm:ssh: Warning")


def _first_words(text: str) -> str:
    """The line that says most of what went wrong."""
    lines = [line.strip("@ \t") for line in text.splitlines()]
    lines = [line for line in lines if re.search("[a-z]", line) and not _NOISE.search(line)]
    telling = [line for line in lines if _TELLS.search(line)]
    return re.sub(r"[.]\s+[A-Z].*", ".", ([*telling, *lines] or [""])[0])[:160]


def sweep(world: World) -> None:
    """End what a run has left on the hosts, and remove its files."""
    for host in world.lab.hosts:
        world.console(host, "kill -9 -1 || true; rm -rf /tmp/prte* /tmp/ompi* /dev/shm/*")


def prepared(where: Home, words: tuple[str, ...]) -> tuple[World, hosts_bare.Bare]:
    """A lab on which a bare mpirun works."""
    lab = LabHosts(LabHome(where.path), "lab")
    program = where.workspace / "allreduce.py"
    program.write_text(ALLREDUCE)
    where.shanty("lab", "up", "3", "--slots", "1", *words)
    mpis = ["openmpi5"]
    for mpi in ("openmpi5", "mpich"):
        if mpi == "openmpi5" or (where.path / "mpi" / mpi).exists():
            where.shanty("run", "-q", "--on", "lab", "-n", RANKS, "--mpi", mpi, "hostname")
    hosts_bare.PLACE = BARE_PLACE  # a fault may be with /tmp
    bare = hosts_bare.Bare(where, "lab", 3)
    bare.prepare(mpis, program)
    return World(lab, bare=True), bare


def main(wanted: list[str]) -> None:
    """Measure the faults of these names, all of them where none is given."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    asked = {fault.name for fault in TABLE if not fault.bare}
    found = {name: seen for name, seen in found.items() if name in asked}
    chosen = [one for one in TABLE if not one.bare and (not wanted or one.name in wanted)]
    mpis = os.environ.get("SHANTY_TEST_MPI")
    for words, kinds in (((), ("plain",)), (("--nic", "tb0"), ("two",))):
        faults = [one for one in chosen if one.lab in kinds]
        if not faults:
            continue
        with home(Path(mpis) if mpis else None) as where:
            world, bare = prepared(where, words)
            try:
                for fault in faults:
                    with fault.plant(world):
                        found[fault.name] = measure(world, bare, fault)
                    sweep(world)
                    print(fault.name, found[fault.name], flush=True)
                    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            finally:
                world.close()
                where.shanty("lab", "down")


if __name__ == "__main__":
    main(sys.argv[1:])
