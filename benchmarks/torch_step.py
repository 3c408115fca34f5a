"""How long training and all_reduce take over gloo, shanty and bare mpi4py, on two ranks here.

    python benchmarks/torch_step.py [--repeats 9] [--mpis openmpi5,openmpi4,mpich,intel]
                                    [--ranks 2] [--out benchmarks/results/torch_step.json]

Each MPI is one `shanty run` whose ranks do everything in turn, round by round (torch_step_rank.py),
so that a machine that gets slower gets slower for all. Printed are medians and quartiles of each,
and of the ratios round by round, with what they should reach; the raw figures are kept in the file.
"checked" is shanty as with SHANTY_CHECK=1. An MPI that is not installed, or whose run fails or
takes too long, is left out, with a word.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import figures
from figures import NoFigures, measured, quartiles, ratios

HERE = Path(__file__).parent
BOUND = 1800  # seconds for the rounds of one MPI
Series = dict[str, list[float]]  # name → seconds, round by round


def measure(mpi: str, ranks: int, repeats: int) -> Series:
    """The rounds of one MPI."""
    options = ["-q", "--mpi", mpi, "-n", ranks, "--oversubscribe", "--time-limit", f"{BOUND}s"]
    words = [sys.executable, "-m", "shanty", "run", *options, HERE / "torch_step_rank.py", repeats]
    found: Series = measured(words, OMP_NUM_THREADS="1")
    return found


def show(mpi: str, found: Series) -> None:
    print(f"\n{mpi}: median [quartiles] of {len(found['mlp gloo'])} rounds")
    for name, aim in (("mlp", 1.4), ("cnn", 1.15)):
        for over in ("gloo", "shanty", "checked", "alone"):
            print(f"  {name} step, {over:<8} {quartiles(found[f'{name} {over}'], 1e3)} ms")
        each = ratios(found[f"{name} gloo"], found[f"{name} shanty"])
        print(f"  {name} step, gloo ÷ shanty  {quartiles(each)}  (aim ≥ {aim})")
    for nbytes in sorted({int(name.split()[0]) for name in found if name[0].isdecimal()}):
        for over in ("gloo", "shanty", "checked", "mpi4py"):
            line = quartiles(found[f"{nbytes} {over}"], 1e6, 1)
            print(f"  all_reduce {nbytes >> 10:>6} KiB, {over:<8} {line} µs")
        ours, bare = found[f"{nbytes} shanty"], found[f"{nbytes} mpi4py"]
        faster = ratios(found[f"{nbytes} gloo"], ours)
        aim = 20 if nbytes <= 4096 else 1.3
        print(f"    gloo ÷ shanty    {quartiles(faster)}  (aim ≥ {aim})")
        if nbytes <= 4096:
            more = figures.differences(ours, bare)
            print(f"    shanty minus mpi4py  {quartiles(more, 1e6, 1)} µs  (aim ≤ 30)")
        else:
            aim_text = "  (aim ≤ 1.05)" if nbytes >= 1 << 20 else ""
            print(f"    shanty ÷ mpi4py  {quartiles(ratios(ours, bare))}{aim_text}")


def main() -> None:
    parser = figures.options(__doc__, 9, "torch_step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mpis", default="openmpi5,openmpi4,mpich,intel")
    options = parser.parse_args()
    raw: dict[str, Series] = {}
    for mpi in options.mpis.split(","):
        try:
            raw[mpi] = measure(mpi, options.ranks, options.repeats)
        except NoFigures as why:
            print(f"{mpi}: left out: {why}", file=sys.stderr)
            continue
        show(mpi, raw[mpi])
        facts = {"ranks": options.ranks, "cores": os.cpu_count()}
        figures.keep(options.out, {**facts, "seconds": raw})


if __name__ == "__main__":
    main()
