"""What an elastic run costs, and how long it takes to go on after a loss.

    python benchmarks/elastic.py [--losses 20] [--repeats 9] [--out FILE]

Losses: four ranks on this machine train by `hvd.elastic`; one is lost in the middle of a
collective. Measured is the time from its death to the end of the first step of the ranks that are
left, on the slowest of them: their recovery, the restored commit and the step. Printed are the
median, the 95th percentile and the longest; a run that does not come to its end is counted as hung.

Cost without a loss: the same allreduces, and training steps with 33 MB of gradients (DDP with
`elastic.ddp`, and `hvd.DistributedOptimizer`), with and without `--elastic`, in turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

HERE = Path(__file__).parent
SHANTY = [sys.executable, "-m", "shanty", "run", "-q", "--mpi", "openmpi5", "--oversubscribe"]
KINDS = {  # how ranks are lost, and which
    "SIGKILL": ("kill", "1"), "SIGSEGV": ("segv", "1"), "exception": ("exception", "1"),
    "exit(1)": ("exit1", "1"), "os._exit(0)": ("exit0", "1"), "rank 0": ("kill", "0"),
    "two at once": ("kill", "1,3"), "one more meanwhile": ("recovery", "1,3"),
}  # fmt: skip
_LIMIT = 180  # seconds after which a run hangs


def run(words: list[str], folder: str) -> list[dict[str, float]] | None:
    """Run a line of shanty's; return what its ranks printed as JSON, None if it hung or failed."""
    try:
        done = subprocess.run(
            [*SHANTY, *words], cwd=folder, capture_output=True, text=True, timeout=_LIMIT,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return told if done.returncode == 0 else None


def recovery(how: str, who: str, folder: str) -> float | None:
    """Return the seconds from a death to the next step of those that are left."""
    for old in Path(folder).glob("died-*"):
        old.unlink()
    told = run(
        ["--elastic", "-n", "4", "-e", "SHANTY_RESUME=0", "-e", "OMP_NUM_THREADS=1",
         str(HERE / "elastic_rank.py"), how, who],
        folder,
    )  # fmt: skip
    died = [float(path.read_text()) for path in Path(folder).glob("died-*")]
    if not told or len(told) != 4 - len(died):
        return None
    return max(each["stepped"] for each in told) - max(died)


def spread(times: list[float]) -> str:
    """Write median, 95th percentile and maximum in milliseconds."""
    ordered = sorted(times)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    parts = (statistics.median(ordered), high, ordered[-1])
    return " / ".join(f"{1e3 * each:.0f}" for each in parts) + " ms"


@click.command()
@click.option("--losses", default=20, help="Runs of each kind.")
@click.option("--repeats", default=9, help="Pairs of runs without a loss.")
@click.option("--only", default="", help="Kinds of losses, with commas.")
@click.option("--out", type=Path, help="A file for all figures.")
def main(losses: int, repeats: int, only: str, out: Path | None) -> None:
    """Measure both."""
    wanted = [each for each in KINDS if not only or each in only.split(",")]
    found: dict[str, list[float]] = {each: [] for each in wanted}
    hung = dict.fromkeys(wanted, 0)
    ratios: dict[str, list[float]] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(losses):
            for kind in wanted:
                took = recovery(*KINDS[kind], folder)
                if took is None:
                    hung[kind] += 1
                else:
                    found[kind].append(took)
        for turn in range(repeats):
            pair: dict[bool, dict[str, float]] = {}
            for elastic in (False, True) if turn % 2 else (True, False):
                words = ["--elastic"] if elastic else []
                told = run([*words, "-n", "2", str(HERE / "elastic_rank.py"), "cost", ""], folder)
                if told:
                    pair[elastic] = told[0]
            for name in pair[True] if len(pair) == 2 else ():
                ratios.setdefault(name, []).append(pair[True][name] / pair[False][name])
    print("death → next step of those that are left: median / 95 % / longest")
    for kind in wanted:
        figures = spread(found[kind]) if found[kind] else "-"
        print(f"  {kind:<20} {len(found[kind])} of {losses}, {hung[kind]} hung   {figures}")
    print("2 ranks with --elastic, without = 1: median [quartiles]")
    for size, values in ratios.items():
        if len(values) > 1:
            low, middle, high = statistics.quantiles(values, n=4)
            print(f"  {size:<20} {middle:.3f} [{low:.3f} to {high:.3f}]")
    print(f"in {time.monotonic() - began:.0f} s")
    if out is not None:
        figures_of = {"recovery": found, "hung": hung, "cost": ratios}
        out.write_text(json.dumps(figures_of, indent=1) + "\n")


if __name__ == "__main__":
    main()
