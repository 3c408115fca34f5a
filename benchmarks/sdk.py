"""How long the call of a task takes: an empty function beside `shanty run` of an empty script.

    python benchmarks/sdk.py [--repeats 15] [--out benchmarks/results/sdk.json]

All on two ranks, wall-clock seconds, interleaved: each round does each once, in turn.

    shanty run     `shanty run -q -n 2 empty.py`, a whole process from outside
    call           `train()` in this process, which has made one before
    first call     `train()` in a new process, with all that it imports, but for `import shanty`
    script         the whole of that process

Printed are medians and quartiles, and those of the differences round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shanty

HERE = Path(__file__).parent
BOUND = 0.05  # seconds that a call may take longer
SCRIPT = """
import time
import shanty

@shanty.task(ranks=2)
def train() -> None:
    pass

began = time.perf_counter()
train()
print(time.perf_counter() - began)
"""


def nothing() -> None:
    """Do nothing."""


def timed(argv: list[str], folder: Path) -> tuple[float, str]:
    """The seconds that a command takes, and what it prints."""
    began = time.perf_counter()
    done = subprocess.run(
        argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return took, done.stdout


def one_round(folder: Path) -> dict[str, float]:
    """Do each once."""
    run = [sys.executable, "-m", "shanty", "run", "-q", "-n", "2", "empty.py"]
    found = {"shanty run": timed(run, folder)[0]}
    train = shanty.task(ranks=2, workdir=folder)(nothing)
    began = time.perf_counter()
    train()
    found["call"] = time.perf_counter() - began
    found["script"], said = timed([sys.executable, "script.py"], folder)
    found["first call"] = float(said)
    return found


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values if len(values) > 1 else values * 2, n=4)
    return f"{middle:6.3f}  [{low:.3f} … {high:.3f}]  min {min(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sdk.json")
    options = parser.parse_args()
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
        os.environ.update(SHANTY_HOME=home, OMP_NUM_THREADS="1")
        folder = Path(place)
        (folder / "empty.py").write_text("")
        (folder / "script.py").write_text(SCRIPT)
        one_round(folder)  # not counted: fills the caches
        for number in range(options.repeats):
            rounds.append(one_round(folder))
            print(f"round {number + 1} of {options.repeats}", file=sys.stderr)
    raw = {name: [each[name] for each in rounds] for name in rounds[0]}
    print(f"{options.repeats} rounds, seconds: median [quartiles]")
    for name, values in raw.items():
        print(f"  {name:<12} {quartiles(values)}")
    for name in ("call", "first call", "script"):
        more = [a - b for a, b in zip(raw[name], raw["shanty run"], strict=True)]
        aim = f" (aim ≤ {BOUND})" if name != "script" else ""
        print(f"  {name} minus shanty run: {quartiles(more)}{aim}")
    options.out.parent.mkdir(exist_ok=True)
    load = [round(each, 1) for each in os.getloadavg()]
    options.out.write_text(json.dumps({"load": load, "seconds": raw}, indent=1) + "\n")
    print(f"raw figures: {options.out}; load {load}")


if __name__ == "__main__":
    main()
