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

import os
import sys
import time
from pathlib import Path

from figures import in_turn, keep, measured, options, quartiles, ratios

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
    words = [*command(who, workers), WORK, library, who, workers, data, rounds]
    begun = time.time()
    found = measured(words, BOUND, OMP_NUM_THREADS="1" if who != "one" else str(workers))
    return {"whole": found.pop("model") - begun, **found}


def show(size: str, found: Figures) -> None:
    print(f"\n{size}: median [quartiles] of {len(found['shanty whole'])} rounds")
    for name, values in found.items():
        unit = "" if name.endswith("logloss") else " s"
        print(f"  {name:<18} {quartiles(values, digits=4 if not unit else 2)}{unit}")
    for what, aim in AIMS.items():
        for other, said in (("dask", f"  (aim ≤ {aim})"), ("one", "")):
            each = ratios(found[f"shanty {what}"], found[f"{other} {what}"])
            print(f"    {what} ÷ {other:<6} {quartiles(each, digits=3)}{said}")


def main() -> None:
    parser = options(__doc__, 7)
    parser.add_argument("--library", choices=["xgboost", "lightgbm"], default="xgboost")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", default="400000x40,800000x80")
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    out = given.out or HERE / "results" / f"{given.library}_scale.json"
    raw: dict[str, Figures] = {}
    for data in given.data.split(","):
        figures: Figures = {}
        for number in range(given.repeats):
            for who in in_turn(["shanty", "dask", "one"], number):
                found = measure(given.library, who, given.workers, data, given.rounds)
                for what, value in found.items():
                    figures.setdefault(f"{who} {what}", []).append(value)
        show(data, figures)
        raw[data] = figures
        facts = {"workers": given.workers, "rounds": given.rounds, "cores": os.cpu_count()}
        keep(out, {**facts, "sizes": raw})


if __name__ == "__main__":
    main()
