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

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BOUND = 300  # seconds for a run
WAYS = ("shanty", "strategy", "alone", "reduce", "reduce-torch")


def measure(how: str, model: str, python: str, mpi: str) -> float | str:
    """The median of the seconds of a step; or why there is none."""
    options = ["-q", "--mpi", mpi, "-n", "2", "--oversubscribe", "--time-limit", f"{BOUND}s"]
    options += ["--python", sys.executable if how == "reduce-torch" else python]
    if how == "alone":
        options += ["--alone", "ok"]
    done = subprocess.run(
        [sys.executable, "-m", "shanty", "run", *options, HERE / "keras_step_rank.py", how, model],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.endswith("]") and "[" in line]
    if done.returncode or not lines:
        return f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"
    text = lines[-1]
    return statistics.median(json.loads(text[text.rindex("[") :]))


def quartiles(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    several = values if len(values) > 1 else values * 2
    low, middle, high = (scale * each for each in statistics.quantiles(several, n=4))
    return f"{middle:9.{digits}f}  [{low:.{digits}f} … {high:.{digits}f}]"


def ratio(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def show(model: str, found: dict[str, list[float]]) -> None:
    print(f"\n{model}: median [quartiles] of {len(found['shanty'])} rounds")
    for how in WAYS:
        print(f"  {how:<24} {quartiles(found[how], 1e3)} ms")
    print(
        f"    shanty ÷ strategy      {quartiles(ratio(found['shanty'], found['strategy']), 1, 3)}"
    )
    print(f"    shanty ÷ alone         {quartiles(ratio(found['shanty'], found['alone']), 1, 3)}")
    both = ratio(found["reduce"], found["reduce-torch"])
    print(f"    reduce ÷ reduce-torch  {quartiles(both, 1, 3)}")
    for how in ("reduce", "reduce-torch"):
        print(f"    {how + ' ÷ shanty':<22} {quartiles(ratio(found[how], found['shanty']), 1, 3)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--mpi", default="openmpi5")
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "keras_step.json")
    options = parser.parse_args()
    raw: dict[str, dict[str, list[float]]] = {}
    for model in options.models.split(","):
        found: dict[str, list[float]] = {how: [] for how in WAYS}
        for number in range(options.repeats):
            for how in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                taken = measure(how, model, options.python, options.mpi)
                if isinstance(taken, str):
                    sys.exit(f"{model}, {how}: {taken}")
                found[how].append(taken)
        show(model, found)
        raw[model] = found
        facts = {"ranks": 2, "cores": os.cpu_count(), "models": raw}
        options.out.parent.mkdir(exist_ok=True)
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"\nraw figures: {options.out}")


if __name__ == "__main__":
    main()
