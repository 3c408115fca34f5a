"""What Horovod's API costs: training steps, many small tensors, and agreeing on them; two ranks.

    python benchmarks/horovod_step.py [--repeats 9] [--mpis openmpi5,mpich] [--ranks 2]
                                      [--out benchmarks/results/horovod_step.json]
    HOROVOD_PYTHON=/path/to/python …         beside C++ Horovod, which that Python can import

A round is a `shanty run` whose ranks do everything in turn (horovod_step_rank.py), so that a
machine that gets slower gets slower for all; every round has processes of its own, since each has
its own luck with the memory that it gets. Printed are medians and quartiles of each, and of the
ratios round by round, with what they should reach; the raw figures are kept in the file. Horovod
itself has runs of its own, which take turns with ours. An MPI that is not installed, or whose run
fails or takes too long, is left out, with a word.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import figures
from figures import NoFigures, measured, quartiles, ratios

HERE = Path(__file__).parent
BOUND = 300  # seconds for a round
NAMES = 8192  # requests that are remembered: all sizes together have more than the usual 1024
HOROVOD = os.environ.get("HOROVOD_PYTHON", "")
Series = dict[str, list[float]]  # name → seconds, round by round


@dataclass
class Figures:
    """seconds: round by round. cycles: of the controller, for one call."""

    seconds: Series = field(default_factory=dict)
    cycles: dict[str, float] = field(default_factory=dict)

    def take(self, found: dict[str, Any]) -> None:
        for name, value in found["seconds"].items():
            self.seconds.setdefault(name, []).append(value)
        self.cycles.update(found["cycles"])


def measure(mpi: str, ranks: int, number: int, python: str, into: Figures) -> None:
    """Add a round to the figures. `python` has Horovod, or is ""."""
    options = ["-q", "--mpi", mpi, "-n", ranks, "--oversubscribe", "--time-limit", f"{BOUND}s"]
    options += ["--python", python, "-e", "SHANTY_HOROVOD=0"] if python else []
    script = [HERE / "horovod_step_rank.py", number, *(["horovod"] * bool(python))]
    words = [sys.executable, "-m", "shanty", "run", *options, *script]
    into.take(measured(words, OMP_NUM_THREADS="1", HOROVOD_CACHE_CAPACITY=str(NAMES)))


def take_turns(mpi: str, ranks: int, repeats: int) -> tuple[Figures, Figures]:
    """Our figures and those of Horovod, which are empty where there is none."""
    ours, theirs = Figures(), Figures()
    for number in range(repeats):
        measure(mpi, ranks, number, "", ours)
        try:
            if HOROVOD:
                measure(mpi, ranks, number, HOROVOD, theirs)
        except NoFigures as why:
            print(f"{mpi}, C++ Horovod: left out: {why}", file=sys.stderr)
    return ours, theirs


def show(mpi: str, ours: Figures, theirs: Figures) -> None:
    seconds, cpp = ours.seconds, theirs.seconds
    print(f"\n{mpi}: median [quartiles] of {len(seconds['mlp hvd'])} rounds")

    def line(name: str, digits: int = 2) -> None:
        print(f"  {name:<28} {quartiles(seconds[name], 1e3, digits)} ms", end="")
        print(f"   C++ {quartiles(cpp[name], 1e3, digits)} ms" if name in cpp else "")

    for model in ("mlp", "cnn"):
        for over in ("ddp", "hvd", "alone"):
            line(f"{model} {over}")
        each = ratios(seconds[f"{model} hvd"], seconds[f"{model} ddp"])
        print(f"    hvd ÷ ddp                {quartiles(each, 1, 3)}  (aim ≤ 1.05)")
        print(f"    cycles a step            {ours.cycles[f'{model} hvd']:9.2f}")
    for what in dict.fromkeys(name.rpartition(" ")[0] for name in seconds if " KiB" in name):
        for over in ("mpi4py", "one", "named", "grouped"):
            line(f"{what} {over}")
        for over in ("named", "grouped"):
            each = ratios(seconds[f"{what} {over}"], seconds[f"{what} one"])
            print(f"    {over} ÷ one {' ' * (14 - len(over))}   {quartiles(each)}  (aim ≤ 1.3)")
        print(f"    cycles an iteration      {ours.cycles[f'{what} named']:9.2f}")
    for over in ("mpi4py", "hvd"):
        line(f"negotiation {over}", 4)
    more = figures.differences(seconds["negotiation hvd"], seconds["negotiation mpi4py"])
    print(f"    more than bare MPI       {quartiles(more, 1e6, 1)} µs")
    print(f"    cycles a call            {ours.cycles['negotiation hvd']:9.2f}")


def main() -> None:
    parser = figures.options(__doc__, 9, "horovod_step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mpis", default="openmpi5,openmpi4,mpich,intel")
    options = parser.parse_args()
    raw: dict[str, dict[str, object]] = {}
    for mpi in options.mpis.split(","):
        try:
            ours, theirs = take_turns(mpi, options.ranks, options.repeats)
        except NoFigures as why:
            print(f"{mpi}: left out: {why}", file=sys.stderr)
            continue
        show(mpi, ours, theirs)
        raw[mpi] = {"seconds": ours.seconds, "cycles": ours.cycles, "horovod": theirs.seconds}
        facts = {"ranks": options.ranks, "cores": os.cpu_count()}
        figures.keep(options.out, {**facts, "mpis": raw})


if __name__ == "__main__":
    main()
