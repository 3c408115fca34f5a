"""How long a training stands still when it loses a rank: shanty, torchrun and torchft.

    python benchmarks/elastic_peers.py [--repeats 5] [--sizes 2,4] [--out FILE]

The same small training on ranks of this machine, each with torch on the CPU. One rank is killed
(SIGKILL), after all have made some steps. Measured is the time from its death to the end of the
first step in the next world, on whichever rank is first. The ways take turns:

- shanty run --elastic: the others go on from the last commit
- torchrun --max-restarts: all processes are started again, and load the last checkpoint
- torchrun --nnodes=1:N, an agent a rank: the lost rank's agent is killed, too, so the others start
  again with fewer. They wait 10 s for more to come, and by default 30 s
- torchft: the others go on (managers, lighthouse, Gloo). It is installed beside this Python's own
  packages: pip install --no-deps --target

A run that makes no such step within the limit counts as hung. Horovod is not measured: its users
report 0.4, 1.2, 7.1 and 15.8 s at 2, 4, 8 and 16 ranks for what Gloo alone takes after a reset
(github.com/horovod/horovod/issues/3556).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

RANK = str(Path(__file__).with_name("elastic_peers_rank.py"))
_START, _LIMIT = 240.0, 120.0  # seconds for the first steps, and for the next world
_STEPS = 30  # that are to be made before

Line = tuple[list[str], dict[str, str]]  # of a process: its words, and variables of its own


def port() -> str:
    """Return one that is free."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def shanty(size: int, _: Path) -> list[Line]:
    words = ["-m", "shanty", "run", "-q", "--mpi", "openmpi5", "--oversubscribe", "--elastic"]
    return [([*words, "-n", str(size), "-e", "SHANTY_RESUME=0", RANK, "shanty"], {})]


def restarts(size: int, _: Path) -> list[Line]:
    words = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "3"]
    return [([*words, "--nproc-per-node", str(size), RANK, "torchrun"], {})]


def fewer(size: int, _: Path) -> list[Line]:
    words = ["-m", "torch.distributed.run", f"--nnodes=1:{size}", "--max-restarts", "3"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port()}"]
    end = ["--nproc-per-node", "1", RANK, "torchrun"]
    conf = "last_call_timeout=10,is_host={}"  # the first has the store, without which none goes on
    return [([*words, "--rdzv-conf", conf.format(int(k == 0)), *end], {}) for k in range(size)]


def torchft(size: int, packages: Path) -> list[Line]:
    where = port()
    server = (
        "import time; from torchft.coordination import LighthouseServer as L; "
        f"server = L(bind='[::]:{where}', min_replicas=1, join_timeout_ms=1000); time.sleep(9e9)"
    )
    shared = {"PYTHONPATH": str(packages), "TORCHFT_LIGHTHOUSE": f"http://localhost:{where}"}
    own = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    ranks = [
        ([RANK, "torchft"], {**shared, **own, "MASTER_PORT": port(), "REPLICA_GROUP_ID": str(k)})
        for k in range(size)
    ]
    return [(["-c", server], shared), *ranks]


WAYS: dict[str, Callable[[int, Path], list[Line]]] = {
    "shanty run --elastic": shanty, "torchrun --max-restarts": restarts,
    "torchrun --nnodes=1:N": fewer, "torchft": torchft,
}  # fmt: skip


def worlds(folder: Path) -> list[tuple[float, str]]:
    """Return when steps ended, and in which world."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / "steps").read_text().splitlines()
        return [(float(at), world) for at, world in (line.split() for line in lines)]
    return []


def until(seconds: float, look: Callable[[], Any]) -> Any:
    """Return what `look` returns once that is something; None if it never is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.01)
    return None


@contextlib.contextmanager
def started(lines: list[Line], folder: Path) -> Iterator[int]:
    """Start these processes, yield the pid of the first; then end them and what they started."""
    ours = []
    with (folder / "output").open("w") as output:
        for words, more in lines:
            environ = {**os.environ, "PEERS": str(folder), "OMP_NUM_THREADS": "1", **more}
            process = subprocess.Popen(
                [sys.executable, *words], env=environ, cwd=folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            ours.append(process)
    try:
        yield ours[0].pid
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in ours:
                    process.wait(20)


def lose(way: str, size: int, packages: Path) -> float | None:
    """Return the seconds from a rank's death to the next step; None if there is none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(WAYS[way](size, packages), folder) as first:
            pids = [folder / f"pid-{rank}" for rank in range(size)]

            def trains() -> bool:
                last = worlds(folder)[-_STEPS * size :]
                whole = len(last) == _STEPS * size and len({world for _, world in last}) == 1
                return whole and all(each.exists() for each in pids)

            ready = until(_START, trains)
            if not ready:
                return _hung(way, folder)
            before = {world for _, world in worlds(folder)}
            pid = int(pids[1].read_text())
            died = time.monotonic()
            if way == "torchrun --nnodes=1:N":
                own = [int(each.read_text()) for each in pids]
                pid = next(each for each in own if parent(each) != first)
                os.kill(parent(pid), signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)

            def next_step() -> float:
                found = (at for at, world in worlds(folder) if at > died and world not in before)
                return next(found, 0.0)

            stepped = until(_LIMIT, next_step)
            return stepped - died if stepped else _hung(way, folder)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _hung(way: str, folder: Path) -> None:
    click.echo(f"{way}, no step:\n{(folder / 'output').read_text()[-1500:]}", err=True)


@click.command()
@click.option("--repeats", default=5, help="Losses of each way and size.")
@click.option("--sizes", default="2,4", help="Numbers of ranks, with commas.")
@click.option("--only", default="", help="Ways, with commas.")
@click.option("--out", type=Path, help="A file for all figures.")
def main(repeats: int, sizes: str, only: str, out: Path | None) -> None:
    """Measure all ways in turns."""
    found: dict[str, list[float]] = {}
    hung: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as packages:
        ways = [way for way in WAYS if not only or way in only.split(",")]
        if "torchft" in ways:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", packages]
            wanted = ["--no-deps", "torchft"], ["opentelemetry-exporter-otlp-proto-http"]
            if any(subprocess.run([*pip, *each], check=False).returncode for each in wanted):
                click.echo("torchft cannot be installed here: left out")
                ways.remove("torchft")
        for _ in range(repeats):
            for size in map(int, sizes.split(",")):
                for way in ways:
                    took = lose(way, size, Path(packages))
                    name = f"{way}, {size} ranks"
                    found.setdefault(name, [])
                    hung.setdefault(name, 0)
                    if took is None:
                        hung[name] += 1
                    else:
                        found[name].append(took)
    click.echo("death of a rank → next step: median [least to most]")
    for name, times in found.items():
        text = "-"
        if times:
            text = f"{statistics.median(times):.2f} s [{min(times):.2f} to {max(times):.2f}]"
        click.echo(f"  {name:<36} {text}   {hung[name]} hung")
    if out is not None:
        out.write_text(json.dumps({"seconds": found, "hung": hung}, indent=1) + "\n")


if __name__ == "__main__":
    main()
