"""How fast `--retries` starts the ranks again, with `--warm` and without.

    python benchmarks/warm.py [--repeats 5] [--mpi openmpi5,mpich] [--kill rank] [--framework torch]
                              [--out FILE]

Two ranks on this machine import a framework and do an allreduce. Then their launcher is killed, or
one of them. Measured is the time from its death to the end of the first allreduce of the next
attempt, on the slower rank; and what part of it had passed when its script began. Both ways take
turns. The memory is that of a fork server which waits, and what a rank adds to it (PSS).
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from shanty.runtime import platform

SCRIPT = """
import time
began = time.time()
import {framework}
import os
import numpy
from mpi4py import MPI

one = numpy.ones(1024)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, one)
print("stands", began, time.time(), flush=True)
if "SHANTY_ATTEMPT_DIR" not in os.environ:
    time.sleep(300)
"""
_LIMIT = 180  # seconds for a run


def stands(run: Path) -> list[list[float]]:
    """Return when scripts began and when their allreduces ended, of the first attempt's ranks."""
    texts = [path.read_text().partition("stands ")[2] for path in run.glob("logs/rank-*.log")]
    return [list(map(float, text.split()[:2])) for text in texts if text]


def pss(pid: int) -> float:
    """Return the memory of a process in MB, shared pages divided among their users."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nPss:")[2].split()[0]) / 1024


def rank_of(run: Path) -> int:
    """Return the pid of rank 1 in the first attempt."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    started = [each["report"] for each in events if each["event"] == "rank-started"]
    return next(int(report["pid"]) for report in started if report["rank"] == 1)


def restart(mpi: str, framework: str, kill: str, *, warm: bool) -> dict[str, float]:
    """Return the seconds from the death of a launcher, or a rank, to what follows."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "again.py").write_text(SCRIPT.format(framework=framework))
        words = ["run", "-q", "--mpi", mpi, "-n", "2", "--retries", "1", "--oversubscribe"]
        words += ["--warm"] if warm else []
        home = Path(folder, "home")
        home.mkdir()
        mpis = Path(os.environ.get("SHANTY_HOME", Path.home() / ".shanty")) / "mpi"
        (home / "mpi").symlink_to(mpis)
        process = subprocess.Popen(
            [sys.executable, "-m", "shanty", *words, "again.py"], cwd=folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "SHANTY_HOME": str(home)},
        )  # fmt: skip
        run = next(_until(lambda: list(home.glob("runs/*-*"))))
        next(_until(lambda: [0] if len(stands(run)) == 2 else []))
        agent = json.loads((run / "agents.json").read_text())["node_agent"]["pid"]
        children = [each.pid for each in platform.descendants(agent) if each.parent == agent]
        server = [pid for pid in children if "fork_server" in str(platform.command(pid))]
        found: dict[str, float] = {}
        if server:
            ranks = [each.pid for each in platform.descendants(server[0])]
            found["server"] = pss(server[0])
            found["rank"] = sum(map(pss, ranks)) / 2
        died = time.time()
        for pid in [rank_of(run)] if kill == "rank" else set(children).difference(server):
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=_LIMIT)
        lines = [line.split() for line in out.splitlines() if "stands" in line]
        again = [list(map(float, words[-2:])) for words in lines if float(words[-1]) > died]
        if process.returncode != 0 or len(again) != 2:
            raise click.ClickException(f"the run failed: {out}{err}")
        found["script"] = max(began for began, _ in again) - died
        found["allreduce"] = max(ended for _, ended in again) - died
        return found


def _until(look: object) -> Iterator[Path]:
    """Yield what `look` returns, once that is something."""
    end = time.monotonic() + _LIMIT
    while time.monotonic() < end:
        yield from look()  # type: ignore[operator]
        time.sleep(0.02)
    raise click.ClickException("the run did not start")


@click.command()
@click.option("--repeats", default=5, help="Restarts of each kind.")
@click.option("--mpi", default="openmpi5", help="MPIs, with commas.")
@click.option("--kill", type=click.Choice(["launcher", "rank"]), default="launcher")
@click.option("--framework", default="torch", help="What the script imports.")
@click.option("--out", type=Path, help="A file for all figures.")
def main(repeats: int, mpi: str, kill: str, framework: str, out: Path | None) -> None:
    """Measure both."""
    figures: dict[str, list[dict[str, float]]] = {}
    for turn in range(repeats):
        for name in mpi.split(","):
            for warm in (False, True) if turn % 2 else (True, False):
                kind = f"{name} {'--warm' if warm else 'without'}"
                figures.setdefault(kind, []).append(restart(name, framework, kill, warm=warm))
    print(f"{kill} killed → script begins / first allreduce ends: medians [range of the second]")
    for kind, found in sorted(figures.items()):
        script, ended = ([each[name] for each in found] for name in ("script", "allreduce"))
        text = f"{statistics.median(script):.2f} / {statistics.median(ended):.2f} s"
        print(f"  {kind:<20} {text} [{min(ended):.2f} to {max(ended):.2f}]", end="")
        memory = [(each["server"], each["rank"]) for each in found if "server" in each]
        if memory:
            server, rank = (statistics.median(each) for each in zip(*memory, strict=True))
            print(f"   PSS: server {server:.0f} MB, a rank {rank:.0f} MB", end="")
        print()
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
