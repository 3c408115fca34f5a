"""How long a start takes: `shanty run` beside bare mpirun and torchrun, interleaved.

    python benchmarks/launch.py [--repeats 9] [--out benchmarks/results/launch.json]

Every command is a whole process from outside, wall-clock seconds. Each round runs all of them
once, in turn, so that a machine that gets slower gets slower for all. Printed are medians and
quartiles and, round by round, the ratios to the peer; the raw figures are kept in the file.
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

from shanty.launch import mpis
from shanty.runtime.mpi.installation import Installation

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TUNED = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}


def commands(mpi: Installation) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name → argv and what is added to the environment."""
    python, allreduce = sys.executable, str(HERE / "launch_mpi4py.py")
    torch = str(HERE / "launch_torch.py")
    shanty = [str(BIN / "shanty"), "run", "-q", "-n", "2"]
    found = {
        "shanty": ([*shanty, allreduce], {}),
        "bare mpirun": ([mpi.launcher, "-n", "2", python, allreduce], AS_ROOT),
        "tuned mpirun": ([mpi.launcher, "-n", "2", python, allreduce], {**AS_ROOT, **TUNED}),
        "shanty --help": ([str(BIN / "shanty"), "--help"], {}),
    }
    if (BIN / "torchrun").exists():
        found["shanty torch"] = ([*shanty, torch, "mpi"], {})
        found["torchrun"] = (
            [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", torch, "gloo"],
            {},
        )
    return found


RATIOS = (
    ("shanty", "bare mpirun", 0.45),
    ("shanty torch", "torchrun", 0.65),
)
DIFFERENCES = (("shanty", "tuned mpirun", 0.25),)


def timed(argv: list[str], extra: dict[str, str], home: str) -> float:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_"))}
    environ.update(extra, SHANTY_HOME=home, OMP_NUM_THREADS="1")
    began = time.perf_counter()
    done = subprocess.run(
        argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return took


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values if len(values) > 1 else values * 2, n=4)
    return f"{middle:6.3f}  [{low:.3f} … {high:.3f}]  min {min(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "launch.json")
    options = parser.parse_args()
    mpi = mpis.select(None, Path("~/.shanty").expanduser(), os.environ)
    plan = commands(mpi)
    raw: dict[str, list[float]] = {name: [] for name in plan}
    with tempfile.TemporaryDirectory() as home:
        for argv, extra in plan.values():
            timed(argv, extra, home)  # not counted: fills the caches
        for number in range(options.repeats):
            for name, (argv, extra) in plan.items():
                raw[name].append(timed(argv, extra, home))
            print(f"round {number + 1} of {options.repeats}", file=sys.stderr)
    print(f"{options.repeats} rounds, seconds: median [quartiles]")
    for name, values in raw.items():
        print(f"  {name:<14} {quartiles(values)}")
    for name, peer, bound in RATIOS:
        if name in raw and peer in raw:
            each = [a / b for a, b in zip(raw[name], raw[peer], strict=True)]
            print(f"  {name} ÷ {peer}: {quartiles(each)}  (aim ≤ {bound})")
    for name, peer, bound in DIFFERENCES:
        each = [a - b for a, b in zip(raw[name], raw[peer], strict=True)]
        print(f"  {name} minus {peer}: {quartiles(each)} s  (aim ≤ {bound})")
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"mpi": mpi.version, "seconds": raw}, indent=1) + "\n")
    print(f"raw figures: {options.out}")


if __name__ == "__main__":
    main()
