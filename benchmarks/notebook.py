"""How long a cell takes on the ranks of a notebook beyond what is in it.

    python benchmarks/notebook.py [--repeats 200] [--ranks 2] [--pauses 20] [--out FILE]

An empty cell is run on ranks of this machine: from the magic's call until all ranks have ended it
and their output is shown. *At once*: one after the other. *After a pause*: three seconds later, as
a person does it, when the ranks take longer naps. Beside it the CPU time that the ranks use while
they wait, in per cent of a core for all of them. Printed are medians and quartiles of wall-clock
milliseconds, and the machine's load before and after.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import figures

from shanty.integrations.notebook.magic import Magics

_PAUSE = 3.0  # seconds
_SETTLED = 12.0  # seconds after which naps are at their longest
_IDLE = 10.0  # seconds in which the CPU time of idle ranks is measured


def timed(magics: Magics) -> float:
    began = time.perf_counter()
    magics.cell("", "pass")
    return (time.perf_counter() - began) * 1000


def cpu(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    magics = Magics(SimpleNamespace(user_ns={}))
    try:
        magics.cell(f"-n {args.ranks} --oversubscribe", "import os; from mpi4py import MPI")
        pids = magics.cell("", "MPI.COMM_WORLD.allgather(os.getpid())")
        for _ in range(10):
            timed(magics)
        times = {"at once": [timed(magics) for _ in range(args.repeats)], "after a pause": []}
        for _ in range(args.pauses):
            time.sleep(_PAUSE)
            times["after a pause"].append(timed(magics))
        time.sleep(_SETTLED)
        before = cpu(pids)
        time.sleep(_IDLE)
        times["idle CPU, per cent"] = [(cpu(pids) - before) / _IDLE * 100]
        return times
    finally:
        magics.stop()


def main() -> None:
    parser = figures.options(__doc__, 200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pauses", type=int, default=20)
    args = parser.parse_args()
    load = [os.getloadavg()[0]]
    with TemporaryDirectory() as home:
        os.environ["SHANTY_HOME"] = home
        times = measure(args)
    load.append(os.getloadavg()[0])
    for name, values in times.items():
        if len(values) > 1:
            print(f"{name:20} {figures.quartiles(values, digits=1)} ms, most {max(values):.1f}")
        else:
            print(f"{name:20} {values[0]:6.1f}")
    print(f"load {load[0]:.1f} … {load[1]:.1f} on {os.cpu_count()} cores")
    facts = {"ranks": args.ranks, "load": load, "cores": os.cpu_count()}
    figures.keep(args.out, {**facts, "times": times})


if __name__ == "__main__":
    main()
