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

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BOUND = 1800  # seconds for the rounds of one MPI
Series = dict[str, list[float]]  # name → seconds, round by round


def measure(mpi: str, ranks: int, repeats: int) -> Series | str:
    """The rounds of one MPI, or why there are none."""
    script = [str(HERE / "torch_step_rank.py"), str(repeats)]
    options = ["-q", "--mpi", mpi, "-n", str(ranks), "--oversubscribe", "--time-limit", f"{BOUND}s"]
    done = subprocess.run(
        [sys.executable, "-m", "shanty", "run", *options, *script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "{" in line and line.endswith("}")]
    if done.returncode or not lines:
        return f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"
    found: Series = json.loads(lines[-1][lines[-1].index("{") :])
    return found


def quartiles(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    several = values if len(values) > 1 else values * 2
    low, middle, high = (scale * each for each in statistics.quantiles(several, n=4))
    return f"{middle:9.{digits}f}  [{low:.{digits}f} … {high:.{digits}f}]"


def ratio(found: Series, above: str, below: str) -> list[float]:
    return [a / b for a, b in zip(found[above], found[below], strict=True)]


def show(mpi: str, found: Series) -> None:
    print(f"\n{mpi}: median [quartiles] of {len(found['mlp gloo'])} rounds")
    for name, aim in (("mlp", 1.4), ("cnn", 1.15)):
        for over in ("gloo", "shanty", "checked", "alone"):
            print(f"  {name} step, {over:<8} {quartiles(found[f'{name} {over}'], 1e3)} ms")
        each = ratio(found, f"{name} gloo", f"{name} shanty")
        print(f"  {name} step, gloo ÷ shanty  {quartiles(each)}  (aim ≥ {aim})")
    for nbytes in sorted({int(name.split()[0]) for name in found if name[0].isdecimal()}):
        for over in ("gloo", "shanty", "checked", "mpi4py"):
            line = quartiles(found[f"{nbytes} {over}"], 1e6, 1)
            print(f"  all_reduce {nbytes >> 10:>6} KiB, {over:<8} {line} µs")
        faster = ratio(found, f"{nbytes} gloo", f"{nbytes} shanty")
        aim = 20 if nbytes <= 4096 else 1.3
        print(f"    gloo ÷ shanty    {quartiles(faster)}  (aim ≥ {aim})")
        ours, bare = found[f"{nbytes} shanty"], found[f"{nbytes} mpi4py"]
        if nbytes <= 4096:
            more = [a - b for a, b in zip(ours, bare, strict=True)]
            print(f"    shanty minus mpi4py  {quartiles(more, 1e6, 1)} µs  (aim ≤ 30)")
        else:
            aim_text = "  (aim ≤ 1.05)" if nbytes >= 1 << 20 else ""
            each = ratio(found, f"{nbytes} shanty", f"{nbytes} mpi4py")
            print(f"    shanty ÷ mpi4py  {quartiles(each)}{aim_text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mpis", default="openmpi5,openmpi4,mpich,intel")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "torch_step.json")
    options = parser.parse_args()
    raw: dict[str, Series] = {}
    for mpi in options.mpis.split(","):
        found = measure(mpi, options.ranks, options.repeats)
        if isinstance(found, str):
            print(f"{mpi}: left out: {found}", file=sys.stderr)
            continue
        raw[mpi] = found
        show(mpi, found)
        options.out.parent.mkdir(exist_ok=True)
        facts = {"ranks": options.ranks, "cores": os.cpu_count()}
        options.out.write_text(json.dumps({**facts, "seconds": raw}, indent=1) + "\n")
    if raw:
        print(f"\nraw figures: {options.out}")


if __name__ == "__main__":
    main()
