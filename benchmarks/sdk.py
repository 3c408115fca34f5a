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

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import figures
from figures import quartiles

import shanty

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


def main() -> None:
    options = figures.options(__doc__, 15, "sdk").parse_args()
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
        print(f"  {name:<12} {quartiles(values, digits=3)}")
    for name in ("call", "first call", "script"):
        more = figures.differences(raw[name], raw["shanty run"])
        aim = f" (aim ≤ {BOUND})" if name != "script" else ""
        print(f"  {name} minus shanty run: {quartiles(more, digits=3)}{aim}")
    load = [round(each, 1) for each in os.getloadavg()]
    print(f"load {load}")
    figures.keep(options.out, {"load": load, "seconds": raw})


if __name__ == "__main__":
    main()
