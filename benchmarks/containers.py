"""What a container costs: the same ranks with and without, interleaved, the image being there.

    python benchmarks/containers.py --image IMAGE [--runtime ENGINE] [--repeats 9]
                                    [--out benchmarks/results/containers.json]

Two figures of a whole `shanty run` of two ranks: the seconds from its start until the first
collective is through (launch_mpi4py.py), and the milliseconds of training steps and all_reduce
that its ranks measure themselves (torch_step_rank.py; an image with Python gets PyTorch from here
by `--packages sync`). Each round runs both in turn, so that a machine that gets slower gets slower
for both. Printed are medians and quartiles, and of the ratios round by round; the raw figures are
kept in the file.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import figures
from figures import quartiles

HERE = Path(__file__).parent
STEPS = 5  # rounds that the ranks of one run make


def run(options: list[str], script: list[str]) -> tuple[float, str]:
    """Seconds of a whole run, and what it said."""
    words = ["run", "-q", "-n", "2", "-C", str(HERE), *options, *script]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "shanty", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{options} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return took, done.stdout


def steps(options: list[str]) -> dict[str, float]:
    """The median seconds of each thing that the ranks of one run do."""
    _, said = run(options, ["torch_step_rank.py", str(STEPS)])
    found: dict[str, list[float]] = figures.last_line(said)
    return {name: statistics.median(values) for name, values in found.items() if "shanty" in name}


def main() -> None:
    parser = figures.options(__doc__, 9, "containers")
    parser.add_argument("--image", required=True)
    parser.add_argument("--runtime")
    given = parser.parse_args()
    inside = ["--image", given.image, "--packages", "sync"]
    inside += ["--runtime", given.runtime] if given.runtime else []
    ways = {"without": [], "container": inside}
    for options in ways.values():  # so that everything is where it has to be
        run(options, ["launch_mpi4py.py"])
    starts: dict[str, list[float]] = {name: [] for name in ways}
    medians: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(given.repeats):
        for name in sorted(ways, reverse=bool(number % 2)):
            starts[name].append(run(ways[name], ["launch_mpi4py.py"])[0])
            medians[name].append(steps(ways[name]))
        print(f"round {number + 1} of {given.repeats}", file=sys.stderr, flush=True)
    print(f"\nwhole run to its first collective, seconds: median [quartiles] of {given.repeats}")
    for name, values in starts.items():
        print(f"  {name:10} {quartiles(values, digits=4)}")
    more = figures.differences(starts["container"], starts["without"])
    print(f"  difference {quartiles(more, digits=4)}")
    print("\ncontainer ÷ without, of the medians of each round")
    for what in medians["without"][0]:
        inside, outside = (
            [each[what] for each in medians[way]] for way in ("container", "without")
        )
        print(f"  {what:24} {quartiles(figures.ratios(inside, outside), digits=4)}")
    figures.keep(given.out, {"starts": starts, "steps": medians})


if __name__ == "__main__":
    main()
