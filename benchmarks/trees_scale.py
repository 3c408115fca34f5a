"""XGBoost or LightGBM over MPI beside Dask and one process: from the command to a model.

    python benchmarks/trees_scale.py [--library xgboost|lightgbm] [--repeats 7] [--workers 2]
                                     [--data 400000x40,800000x80,fashion] [--rounds 100]
                                     [--out benchmarks/results/LIBRARY_scale.json]

Each has as many threads in all as there are workers: `shanty` and `dask` (a LocalCluster) that many
processes of one thread, `one` a single process of as many threads, which is the limit on one
machine. All train on the same rows: made from a seed, block by block, or Fashion-MNIST's
(Debian's dataset-fashion-mnist). They take turns, and who is first changes from round to round.
Printed are medians and quartiles, and of the ratios round by round:

    whole     from the start of the first process until there is a model
    training  making the matrix from arrays in memory, and training
    bring-up  init() of shanty.xgboost or shanty.lightgbm: MPI's start, the connections

The raw figures are kept in the file. It needs dask: pip install 'dask[distributed,array]'.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
WORK = HERE / "trees_scale_work.py"
BOUND = 900  # seconds for one training
AIMS = {"whole": 0.8, "training": 0.95}  # shanty ÷ dask
Figures = dict[str, list[float]]  # "shanty whole" → seconds, round by round


def command(who: str, workers: int) -> list[str]:
    if who != "shanty":
        return [sys.executable]
    # -q: the output is the worker's own line; a core for each rank
    return [sys.executable, "-m", "shanty", "run", "-q", "-n", str(workers), "--oversubscribe"]


def measure(library: str, who: str, workers: int, data: str, rounds: int) -> dict[str, float]:
    """Seconds of one training."""
    words = [str(WORK), library, who, str(workers), data, str(rounds)]
    begun = time.time()
    done = subprocess.run(
        [*command(who, workers), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1" if who != "one" else str(workers)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.rstrip().endswith("}")]
    if done.returncode or not lines:
        raise SystemExit(f"{library}, {who}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    found = json.loads(lines[-1][lines[-1].index("{") :])
    return {"whole": found.pop("model") - begun, **found}


def quartiles(values: list[float], digits: int = 2) -> str:
    several = values if len(values) > 1 else values * 2
    low, middle, high = statistics.quantiles(several, n=4)
    return f"{middle:8.{digits}f}  [{low:.{digits}f} … {high:.{digits}f}]"


def show(size: str, figures: Figures) -> None:
    print(f"\n{size}: median [quartiles] of {len(figures['shanty whole'])} rounds")
    for name, values in figures.items():
        unit = "" if name.endswith("logloss") else " s"
        print(f"  {name:<18} {quartiles(values, 4 if not unit else 2)}{unit}")
    for what, aim in AIMS.items():
        for other, said in (("dask", f"  (aim ≤ {aim})"), ("one", "")):
            pairs = zip(figures[f"shanty {what}"], figures[f"{other} {what}"], strict=True)
            print(f"    {what} ÷ {other:<6} {quartiles([a / b for a, b in pairs], 3)}{said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=["xgboost", "lightgbm"], default="xgboost")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", default="400000x40,800000x80")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or HERE / "results" / f"{options.library}_scale.json"
    raw: dict[str, Figures] = {}
    for data in options.data.split(","):
        figures: Figures = {}
        for number in range(options.repeats):
            order = ["shanty", "dask", "one"]
            first = number % len(order)
            for who in order[first:] + order[:first]:
                found = measure(options.library, who, options.workers, data, options.rounds)
                for what, value in found.items():
                    figures.setdefault(f"{who} {what}", []).append(value)
        show(data, figures)
        raw[data] = figures
        facts = {"workers": options.workers, "rounds": options.rounds, "cores": os.cpu_count()}
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps({**facts, "sizes": raw}, indent=1) + "\n")
    print(f"\nraw figures: {out}")


if __name__ == "__main__":
    main()
