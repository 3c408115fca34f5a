"""How long a start takes: `shanty run` beside bare mpirun and torchrun, interleaved.

    python benchmarks/launch.py [--repeats 9] [--out benchmarks/results/launch.json]

Every command is a whole process from outside, wall-clock seconds. Each round runs all of them
once, in turn, so that a machine that gets slower gets slower for all. Printed are medians and
quartiles and, round by round, the ratios to the peer; the raw figures are kept in the file.
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


def main() -> None:
    options = figures.options(__doc__, 9, "launch").parse_args()
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
        print(f"  {name:<14} {quartiles(values, digits=3)}")
    for name, peer, bound in RATIOS:
        if name in raw and peer in raw:
            each = quartiles(figures.ratios(raw[name], raw[peer]), digits=3)
            print(f"  {name} ÷ {peer}: {each}  (aim ≤ {bound})")
    for name, peer, bound in DIFFERENCES:
        each = quartiles(figures.differences(raw[name], raw[peer]), digits=3)
        print(f"  {name} minus {peer}: {each} s  (aim ≤ {bound})")
    figures.keep(options.out, {"mpi": mpi.version, "seconds": raw})


if __name__ == "__main__":
    main()
