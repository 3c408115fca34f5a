"""Reductions of 64 MiB between four lab hosts, beside what the wire allows.

    python benchmarks/torch_wire.py [--repeats 9] [--hosts 4] [--rates 1000,200] [--mib 64]
                                    [--mpis openmpi5] [--out benchmarks/results/torch_wire.json]

The hosts are those of a lab in this machine, each sending at so many Mbit/s, one rank a host. The
bound is the ring's: 2 (n - 1) / n times the bytes, at that rate; half of it for reduce_scatter and
all_gather. Beside shanty's time are gloo's, bare mpi4py's, that of as many bytes of bfloat16, and
the CPU time that all ranks took together, also in parts of what this machine's cores have: where
that comes near 100 %, they are the limit. A combination that fails is left out, with a word.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import figures
import hosts_lab
from figures import NoFigures

HERE = Path(__file__).parent
RANK = "torch_wire_rank.py"
BOUND = 1200  # seconds for the rounds at one rate
CORES = os.cpu_count() or 1
Rounds = dict[str, list[tuple[float, float]]]  # name → seconds and CPU seconds, round by round


def measure(where: hosts_lab.Home, lab: str, mpi: str, hosts: int, words: list[str]) -> Rounds:
    """The rounds of one MPI."""
    shutil.copy(HERE / RANK, where.workspace)
    place = ["--on", lab, "-n", str(hosts), "--ranks-per-host", "1", "--time-limit", f"{BOUND}s"]
    try:
        text = where.shanty("run", "-q", *place, "--mpi", mpi, RANK, *words, timeout=BOUND + 60)
    except subprocess.TimeoutExpired as error:
        raise NoFigures(str(error)) from None
    found: Rounds = figures.last_line(text)
    return found


def bound(nbytes: int, hosts: int, mbit: int) -> float:
    """Seconds that an all_reduce takes at least."""
    return 2 * (hosts - 1) / hosts * nbytes * 8 / (mbit * 1e6)


def show(found: Rounds, least: float) -> None:
    print(f"  the ring's bound is {least:.3f} s for all_reduce")
    for name, rounds in found.items():
        times = [seconds for seconds, _ in rounds]
        middle = statistics.median(times)
        cpu = statistics.median(cpu for _, cpu in rounds)
        part = (least if name.startswith("all_reduce") else least / 2) / middle
        print(
            f"  {name:<28} {figures.quartiles(times, digits=3)} s, {part:.0%} of the bound, "
            f"{cpu:.2f} CPU seconds ({cpu / middle / CORES:.0%} of the cores)"
        )


def main() -> None:
    parser = figures.options(__doc__, 9, "torch_wire")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", default="1000,200")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--mpis", default="openmpi5")
    options = parser.parse_args()
    nbytes = options.mib << 20
    rates = [int(rate) for rate in options.rates.split(",")]
    least = {rate: bound(nbytes, options.hosts, rate) for rate in rates}
    facts = {"bytes": nbytes, "hosts": options.hosts, "cores": CORES, "bound": least}
    raw: dict[str, Rounds] = {}
    mpis = Path(os.environ.get("SHANTY_TEST_MPI", "~/.shanty/mpi")).expanduser()
    with hosts_lab.home(mpis) as where:
        for mbit in rates:
            with hosts_lab.lab(where, options.hosts, "--rate", f"eth0={mbit}mbit") as lab:
                for mpi in options.mpis.split(","):
                    words = [str(nbytes), str(options.repeats)]
                    try:
                        raw[f"{mpi} {mbit}"] = measure(where, lab, mpi, options.hosts, words)
                    except SystemExit as error:
                        print(f"{mpi} at {mbit} Mbit/s: left out: {error}", file=sys.stderr)
                        continue
                    print(f"{mpi}, {mbit} Mbit/s, {options.hosts} hosts")
                    show(raw[f"{mpi} {mbit}"], least[mbit])
                    figures.keep(options.out, {**facts, "rounds": raw})


if __name__ == "__main__":
    main()
