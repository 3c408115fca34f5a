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

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

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

    def take(self, line: str) -> None:
        found = json.loads(line)
        for name, value in found["seconds"].items():
            self.seconds.setdefault(name, []).append(value)
        self.cycles.update(found["cycles"])


def measure(mpi: str, ranks: int, number: int, python: str, into: Figures) -> str:
    """Add a round to the figures; why there is none, if so. `python` has Horovod, or is ""."""
    script = [str(HERE / "horovod_step_rank.py"), str(number)]
    options = ["-q", "--mpi", mpi, "-n", str(ranks), "--oversubscribe", "--time-limit", f"{BOUND}s"]
    options += ["--python", python, "-e", "SHANTY_HOROVOD=0"] if python else []
    done = subprocess.run(
        [sys.executable, "-m", "shanty", "run", *options, *script, *(["horovod"] * bool(python))],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOROVOD_CACHE_CAPACITY": str(NAMES)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "{" in line and line.endswith("}")]
    if done.returncode or not lines:
        return f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"
    into.take(lines[-1][lines[-1].index("{") :])
    return ""


def take_turns(mpi: str, ranks: int, repeats: int) -> tuple[Figures, Figures] | str:
    """Our figures and those of Horovod, which are empty where there is none."""
    ours, theirs = Figures(), Figures()
    for number in range(repeats):
        if why := measure(mpi, ranks, number, "", ours):
            return why
        if HOROVOD and (why := measure(mpi, ranks, number, HOROVOD, theirs)):
            print(f"{mpi}, C++ Horovod: left out: {why}", file=sys.stderr)
    return ours, theirs


def quartiles(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    several = values if len(values) > 1 else values * 2
    low, middle, high = (scale * each for each in statistics.quantiles(several, n=4))
    return f"{middle:9.{digits}f}  [{low:.{digits}f} … {high:.{digits}f}]"


def ratio(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def show(mpi: str, ours: Figures, theirs: Figures) -> None:
    seconds, cpp = ours.seconds, theirs.seconds
    print(f"\n{mpi}: median [quartiles] of {len(seconds['mlp hvd'])} rounds")

    def line(name: str, digits: int = 2) -> None:
        print(f"  {name:<28} {quartiles(seconds[name], 1e3, digits)} ms", end="")
        print(f"   C++ {quartiles(cpp[name], 1e3, digits)} ms" if name in cpp else "")

    for model in ("mlp", "cnn"):
        for over in ("ddp", "hvd", "alone"):
            line(f"{model} {over}")
        each = ratio(seconds[f"{model} hvd"], seconds[f"{model} ddp"])
        print(f"    hvd ÷ ddp                {quartiles(each, 1, 3)}  (aim ≤ 1.05)")
        print(f"    cycles a step            {ours.cycles[f'{model} hvd']:9.2f}")
    for what in dict.fromkeys(name.rpartition(" ")[0] for name in seconds if " KiB" in name):
        for over in ("mpi4py", "one", "named", "grouped"):
            line(f"{what} {over}")
        for over in ("named", "grouped"):
            each = ratio(seconds[f"{what} {over}"], seconds[f"{what} one"])
            print(f"    {over} ÷ one {' ' * (14 - len(over))}   {quartiles(each)}  (aim ≤ 1.3)")
        print(f"    cycles an iteration      {ours.cycles[f'{what} named']:9.2f}")
    for over in ("mpi4py", "hvd"):
        line(f"negotiation {over}", 4)
    both = zip(seconds["negotiation hvd"], seconds["negotiation mpi4py"], strict=True)
    more = [a - b for a, b in both]
    print(f"    more than bare MPI       {quartiles(more, 1e6, 1)} µs")
    print(f"    cycles a call            {ours.cycles['negotiation hvd']:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mpis", default="openmpi5,openmpi4,mpich,intel")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "horovod_step.json")
    options = parser.parse_args()
    raw: dict[str, dict[str, object]] = {}
    for mpi in options.mpis.split(","):
        found = take_turns(mpi, options.ranks, options.repeats)
        if isinstance(found, str):
            print(f"{mpi}: left out: {found}", file=sys.stderr)
            continue
        ours, theirs = found
        show(mpi, ours, theirs)
        raw[mpi] = {"seconds": ours.seconds, "cycles": ours.cycles, "horovod": theirs.seconds}
        options.out.parent.mkdir(exist_ok=True)
        facts = {"ranks": options.ranks, "cores": os.cpu_count()}
        options.out.write_text(json.dumps({**facts, "mpis": raw}, indent=1) + "\n")
    if raw:
        print(f"\nraw figures: {options.out}")


if __name__ == "__main__":
    main()
