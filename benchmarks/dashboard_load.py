"""What the dashboard costs a run whose ranks print as fast as they can.

    python benchmarks/dashboard_load.py [--ranks 64] [--lines 4000] [--repeats 7] [--out FILE]

Rounds of two runs in changing order: one alone, one with `shanty ui` and a client that follows four
ranks' logs and the run's state, as its page does. Printed are the seconds that the ranks printed,
their ratio, the server's share of the cores, and its memory at its largest.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import httpx

from dashboard import served
from shanty.runtime.rundir import RunDir, read_json

SCRIPT = """
import sys
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
for number in range(int(sys.argv[1])):
    print(number, "x" * 90)
MPI.COMM_WORLD.Barrier()
"""
FOLLOWED = "0,1,2,3"


@dataclass
class Server:
    """`shanty ui`, asked as its pages do."""

    url: str
    client: httpx.Client
    pid: int

    def cpu(self) -> float:
        """The seconds that it has computed."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, key: str) -> float:
        """MiB: VmRSS is what it has, VmHWM the most that it has had."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"{key}:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1024


def follow(its: Server, run: str, got: list[int]) -> None:
    """Read what the run's page would read, to the end of the run."""
    where = f"{its.url}/runs/{run}/stream?ranks={FOLLOWED}"
    with its.client.stream("GET", where) as answer:
        for part in answer.iter_bytes():
            got[0] += len(part)
            if b'"state":"succeeded"' in part.replace(b" ", b""):
                return


def printed(
    home: Path, script: Path, args: argparse.Namespace, its: Server | None
) -> dict[str, Any]:
    """One run; the seconds from its ranks' start to its end."""
    words = [sys.executable, "-m", "shanty", "run", "-d", "-q", "--oversubscribe"]
    words += ["-n", str(args.ranks), str(script), str(args.lines)]
    environ = {**os.environ, "SHANTY_HOME": str(home)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    run = RunDir(home / "runs" / done.stdout.strip())
    got = [0]
    reader = threading.Thread(target=follow, args=(its, run.id, got)) if its else None
    if reader:
        reader.start()
    while (read_json(run.status) or {}).get("ended") is None:
        time.sleep(0.05)
    if reader:
        reader.join(60)
    status = read_json(run.status) or {}
    assert status["state"] == "succeeded", status
    return {"seconds": status["lasted"], "received": got[0]}


def main() -> None:
    parser = figures.options(__doc__, 7)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--lines", type=int, default=4000)
    args = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        home, script = Path(folder, "home"), Path(folder, "print.py")
        script.write_text(SCRIPT)
        printed(home, script, args, None)  # what is cached is cached
        for number in range(args.repeats):
            one: dict[str, Any] = {}
            for kind in ("alone", "watched") if number % 2 else ("watched", "alone"):
                if kind == "alone":
                    one[kind] = printed(home, script, args, None)
                    continue
                with served(home) as up:
                    its = Server(*up)
                    before, computed = its.memory("VmRSS"), its.cpu()
                    one[kind] = printed(home, script, args, its)
                    one["memory"] = [before, its.memory("VmHWM")]
                    one["cpu"] = its.cpu() - computed
            rounds.append(one)
            ratio = one["watched"]["seconds"] / one["alone"]["seconds"]
            one["share"] = one["cpu"] / one["watched"]["seconds"] / (os.cpu_count() or 1)
            print(
                f"round {number + 1}: {one['alone']['seconds']:.2f} s alone, ratio {ratio:.3f}, "
                f"the server had {one['share']:.1%} of the cores"
            )
    ratios = [one["watched"]["seconds"] / one["alone"]["seconds"] for one in rounds]
    print(f"watched ÷ alone: {figures.quartiles(ratios, digits=3)}")
    share = statistics.median(one["share"] for one in rounds)
    print(f"server: {share:.1%} of the cores (median)")
    print(f"server: {max(m[1] for m in (one['memory'] for one in rounds)):.0f} MiB at most")
    figures.keep(args.out, {"arguments": str(args), "rounds": rounds})


if __name__ == "__main__":
    main()
