"""What `fit` on two ranks costs: beside MultiWorkerMirroredStrategy, and beside one process.

    python benchmarks/keras_step.py [--python PYTHON] [--repeats 7] [--mpi openmpi5]
                                    [--out benchmarks/results/keras_step.json]

PYTHON is one with TensorFlow 2.15, where Keras's own strategy works; this one has PyTorch. In a
round each has a run of its own, in turn: steps of `fit` with shanty, with the strategy (over gRPC,
as it has it) and without other ranks; and the gradients of a step alone, reduced on TensorFlow and
by `shanty.torch`. Each rank has one thread for its arithmetic. Printed are medians and quartiles
over the rounds' medians, and of the ratios round by round.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import figures
from figures import measured, quartiles, ratios

HERE = Path(__file__).parent
BOUND = 300  # seconds for a run
WAYS = ("shanty", "strategy", "alone", "reduce", "reduce-torch")


def measure(how: str, model: str, python: str, mpi: str) -> float:
    """The median of the seconds of a step."""
    options = ["-q", "--mpi", mpi, "-n", "2", "--oversubscribe", "--time-limit", f"{BOUND}s"]
    options += ["--python", sys.executable if how == "reduce-torch" else python]
    if how == "alone":
        options += ["--alone", "ok"]
    script = [HERE / "keras_step_rank.py", how, model]
    found = measured([sys.executable, "-m", "shanty", "run", *options, *script])
    return statistics.median(found["seconds"])


def show(model: str, found: dict[str, list[float]]) -> None:
    print(f"\n{model}: median [quartiles] of {len(found['shanty'])} rounds")
    for how in WAYS:
        print(f"  {how:<24} {quartiles(found[how], 1e3)} ms")
    print(
        f"    shanty ÷ strategy      {quartiles(ratios(found['shanty'], found['strategy']), 1, 3)}"
    )
    print(f"    shanty ÷ alone         {quartiles(ratios(found['shanty'], found['alone']), 1, 3)}")
    both = ratios(found["reduce"], found["reduce-torch"])
    print(f"    reduce ÷ reduce-torch  {quartiles(both, 1, 3)}")
    for how in ("reduce", "reduce-torch"):
        print(f"    {how + ' ÷ shanty':<22} {quartiles(ratios(found[how], found['shanty']), 1, 3)}")


def main() -> None:
    parser = figures.options(__doc__, 7, "keras_step")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--mpi", default="openmpi5")
    parser.add_argument("--models", default="mlp,cnn")
    options = parser.parse_args()
    raw: dict[str, dict[str, list[float]]] = {}
    for model in options.models.split(","):
        found: dict[str, list[float]] = {how: [] for how in WAYS}
        for number in range(options.repeats):
            for how in figures.in_turn(WAYS, number):
                found[how].append(measure(how, model, options.python, options.mpi))
        show(model, found)
        raw[model] = found
        figures.keep(options.out, {"ranks": 2, "cores": os.cpu_count(), "models": raw})


if __name__ == "__main__":
    main()
