"""An allreduce of 64 MiB between four lab hosts, beside what the wire allows.

    python benchmarks/torch_wire.py [--repeats 9] [--hosts 4] [--rates 1000,200] [--mib 64]
                                    [--mpis openmpi5] [--out benchmarks/results/torch_wire.json]

The hosts are those of a lab in this machine, each sending at so many Mbit/s, one rank a host. The
bound is the ring's: 2 (n - 1) / n times the bytes, at that rate. Beside shanty's time are gloo's,
bare mpi4py's, that of as many bytes of bfloat16, and the CPU time that all ranks took together:
where it comes near hosts x seconds / (hosts / cores), this machine's cores are the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from pathlib import Path

import hosts_lab

HERE = Path(__file__).parent
RANK = "torch_wire_rank.py"
BOUND = 1200  # seconds for the rounds at one rate
Rounds = dict[str, list[tuple[float, float]]]  # name → seconds and CPU seconds, round by round


def measure(where: hosts_lab.Home, lab: str, mpi: str, hosts: int, words: list[str]) -> Rounds:
    shutil.copy(HERE / RANK, where.workspace)
    place = ["--on", lab, "-n", str(hosts), "--ranks-per-host", "1"]
    text = where.shanty("run", "-q", *place, "--mpi", mpi, RANK, *words, timeout=BOUND)
    line = next(line for line in text.splitlines() if line.endswith("}"))
    found: Rounds = json.loads(line[line.index("{") :])
    return found


def show(found: Rounds, nbytes: int, hosts: int, mbit: int) -> None:
    bound = 2 * (hosts - 1) / hosts * nbytes * 8 / (mbit * 1e6)
    print(f"{mbit} Mbit/s, {hosts} hosts: the ring's bound is {bound:.3f} s")
    for name, rounds in found.items():
        low, middle, high = statistics.quantiles([seconds for seconds, _ in rounds], n=4)
        cpu = statistics.median(cpu for _, cpu in rounds)
        print(
            f"  {name:<17} {middle:.3f} s [{low:.3f} … {high:.3f}], "
            f"{bound / middle:.0%} of the bound, {cpu:.2f} CPU seconds"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", default="1000,200")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--mpis", default="openmpi5")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "torch_wire.json")
    options = parser.parse_args()
    nbytes = options.mib << 20
    raw: dict[str, Rounds] = {}
    mpis = Path(os.environ.get("SHANTY_TEST_MPI", "~/.shanty/mpi")).expanduser()
    with hosts_lab.home(mpis) as where:
        for mbit in map(int, options.rates.split(",")):
            with hosts_lab.lab(where, options.hosts, "--rate", f"eth0={mbit}mbit") as lab:
                for mpi in options.mpis.split(","):
                    words = [str(nbytes), str(options.repeats)]
                    found = measure(where, lab, mpi, options.hosts, words)
                    raw[f"{mpi} {mbit}"] = found
                    print(mpi, end=", ")
                    show(found, nbytes, options.hosts, mbit)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"bytes": nbytes, "rounds": raw}, indent=1) + "\n")
    print(f"raw figures: {options.out}")


if __name__ == "__main__":
    main()
