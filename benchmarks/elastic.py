"""What an elastic run costs, and how long it takes to go on after a loss.

    python benchmarks/elastic.py [--framework torch|tensorflow|keras] [--python PYTHON] [--runs 20]
                                 [--only KINDS] [--repeats 9] [--json FILE]

Losses: four ranks on this machine train by `hvd.elastic`; one is lost in the middle of a
collective. Measured is the time from its death to the end of the first step of the ranks that are
left, on the slowest of them: their recovery, the restored commit and the step. A stopped rank
(SIGSTOP) dies when `--stall-after 1s` has found it. A rank that runs out of memory does so in a
control group of its own (this needs root). Each run must come to its end, with the lost ranks and
the cause that shanty reports for them, the same parameters on all that are left, and a loss within
15 % of that of an undisturbed run over as many samples. Printed are median, 95th percentile and the
longest; what hung, and what failed otherwise, is counted.

Ranks are started with `--warm`, which saves most of the imports. It has no part in what is
measured: lost ranks are not started again here.

Cost without a loss (torch): the same allreduces, and training steps with 33 MB of gradients (DDP
with `elastic.ddp`, and `hvd.DistributedOptimizer`), with and without `--elastic`, in turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent
SHANTY = [sys.executable, "-m", "shanty", "run", "-q", "--mpi", "openmpi5", "--oversubscribe"]
KINDS = {  # how ranks are lost, which, and what is said of them
    "SIGKILL": ("kill", "1", "was ended by SIGKILL"),
    "SIGSEGV": ("segv", "1", "was ended by SIGSEGV"),
    "exit(1)": ("exit1", "1", "ended with exit code 1"),
    "exception": ("exception", "1", "ValueError: planted"),
    "os._exit(0)": ("exit0", "1", "ended with exit code 0 without MPI_Finalize"),
    "SIGSTOP": ("stop", "1", "was ended since it hung"),
    "out of memory": ("memory", "1", "out of memory"),
    "rank 0": ("kill", "0", "was ended by SIGKILL"),
    "two at once": ("kill", "1,3", "was ended by SIGKILL"),
    "one more meanwhile": ("recovery", "1,3", "was ended by SIGKILL"),
}  # fmt: skip
RANKS, NEAR = 4, 0.15
STEPS, COMMITTED = 60, 30  # steps of a training, and those before a loss that count
_LIMIT = 300  # seconds after which a run hangs


class Wrong(Exception):  # noqa: N818 (a result)
    """A run that did not do what it should."""


def run(words: list[str], folder: str) -> tuple[list[dict[str, Any]], str]:
    """Run a line of shanty's; return what its ranks printed as JSON, and what shanty said."""
    try:
        done = subprocess.run(
            [*SHANTY, "--time-limit", f"{_LIMIT}s", *words], cwd=folder, capture_output=True,
            text=True, timeout=2 * _LIMIT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Wrong("hung") from None
    if "time limit" in done.stderr:
        raise Wrong("hung")
    if done.returncode:
        raise Wrong(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")], done.stderr


def train(how: str, who: str, framework: str, python: str, folder: str, steps: int = STEPS) -> Any:
    """Run a training; return what its ranks printed, what shanty said, and when ranks died."""
    for old in Path(folder).glob("died-*"):
        old.unlink()
    warm = "numpy,torch" if framework == "torch" else "numpy,tensorflow"
    words = ["--elastic", f"--warm={warm}", "-n", str(RANKS), "--python", python]
    words += ["--stall-after", "1s"]
    for each in ("SHANTY_RESUME=0", "OMP_NUM_THREADS=1", "TF_CPP_MIN_LOG_LEVEL=2"):
        words += ["-e", each]
    try:
        told, said = run(
            [*words, str(HERE / "elastic_rank.py"), how, who, framework, str(steps)], folder
        )
    finally:
        for each in Path(folder).glob("group-*"):
            with suppress(OSError):
                Path(each.read_text()).rmdir()
            each.unlink()
    return told, said, [float(path.read_text()) for path in Path(folder).glob("died-*")]


def undisturbed(lost: int, framework: str, python: str, folder: str) -> float:
    """Return the loss of a training without a loss of ranks, over the samples of one with it."""
    samples = RANKS * COMMITTED + (RANKS - lost) * (STEPS - COMMITTED)
    return float(train("none", "", framework, python, folder, samples // RANKS)[0][0]["loss"])


def recovery(kind: str, framework: str, python: str, folder: str, usual: dict[int, float]) -> float:
    """Return the seconds from a death to the next step of those that are left.

    usual: by the number of lost ranks, the loss of a training over as many samples.
    """
    how, who, cause = KINDS[kind]
    told, said, died = train(how, who, framework, python, folder)
    lost = who.split(",")
    if (len(died), len(told)) != (len(lost), RANKS - len(lost)):
        raise Wrong(f"{len(died)} ranks died, {len(told)} came to the end")
    if len({each["digest"] for each in told}) != 1:
        raise Wrong("the ranks that are left have different parameters")
    if abs(told[0]["loss"] / usual[len(lost)] - 1) > NEAR:
        raise Wrong(f"the loss is {told[0]['loss']:.4g}, undisturbed {usual[len(lost)]:.4g}")
    reported = [line for line in said.splitlines() if " left" in line and cause in line]
    if not all(any(f"rank {each} on " in line for line in reported) for each in lost):
        raise Wrong(f"not reported as {cause!r}: {said}")
    return float(max(each["stepped"] for each in told) - max(died))


def spread(times: list[float]) -> str:
    """Write median, 95th percentile and maximum in milliseconds."""
    ordered = sorted(times)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    parts = (statistics.median(ordered), high, ordered[-1])
    return " / ".join(f"{1e3 * each:.0f}" for each in parts) + " ms"


def ratios_of(repeats: int, folder: str) -> dict[str, list[float]]:
    """Return the times of allreduces with --elastic, those without being 1."""
    ratios: dict[str, list[float]] = {}
    for turn in range(repeats):
        pair: dict[bool, dict[str, float]] = {}
        for elastic in (False, True) if turn % 2 else (True, False):
            words = ["--elastic"] if elastic else []
            told, _ = run([*words, "-n", "2", str(HERE / "elastic_rank.py"), "cost", ""], folder)
            pair[elastic] = told[0]
        for name in pair[True]:
            ratios.setdefault(name, []).append(pair[True][name] / pair[False][name])
    return ratios


@click.command()
@click.option("--framework", default="torch", help="torch, tensorflow or keras.")
@click.option("--python", default=sys.executable, help="A Python with the framework.")
@click.option("--runs", default=20, help="Runs of each kind.")
@click.option("--repeats", default=9, help="Pairs of runs without a loss.")
@click.option("--only", default="", help="Kinds of losses, with commas.")
@click.option("--json", "out", type=Path, help="A file for all figures.")
def main(framework: str, python: str, runs: int, repeats: int, only: str, out: Path | None) -> None:
    """Measure both."""
    wanted = [each for each in KINDS if not only or each in only.split(",")]
    found: dict[str, list[float]] = {each: [] for each in wanted}
    wrong: dict[str, list[str]] = {each: [] for each in wanted}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        usual = {lost: undisturbed(lost, framework, python, folder) for lost in (1, 2)}
        for _ in range(runs):
            for kind in wanted:
                try:
                    found[kind].append(recovery(kind, framework, python, folder, usual))
                except Wrong as why:
                    wrong[kind].append(str(why))
                    print(f"{kind}: {why}", file=sys.stderr, flush=True)
        ratios = ratios_of(repeats if framework == "torch" else 0, folder)
    print(f"{framework}, death → next step of those that are left: median / 95 % / longest")
    for kind in wanted:
        figures = spread(found[kind]) if found[kind] else "-"
        hung = wrong[kind].count("hung")
        odd = len(wrong[kind]) - hung
        counts = f"{len(found[kind])} of {runs}, {hung} hung, {odd} wrong"
        print(f"  {kind:<20} {counts}   {figures}")
    if ratios:
        print("2 ranks with --elastic, without = 1: median [quartiles]")
    for size, values in ratios.items():
        if len(values) > 1:
            low, middle, high = statistics.quantiles(values, n=4)
            print(f"  {size:<20} {middle:.3f} [{low:.3f} to {high:.3f}]")
    print(f"in {time.monotonic() - began:.0f} s")
    if out is not None:
        figures_of = {"framework": framework, "recovery": found, "wrong": wrong, "cost": ratios}
        out.write_text(json.dumps(figures_of, indent=1) + "\n")


if __name__ == "__main__":
    main()
