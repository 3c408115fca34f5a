"""How long a run takes to get going in N pods, and how many requests it makes of the API server.

    python benchmarks/kubernetes.py --image IMAGE [--pods 2,8,32,64] [--repeats 3] [--agents]

A real cluster, that of KUBECONFIG: `--cpu` is what each pod asks for, so that many fit on few
nodes. Each run has one rank a pod, which joins and ends; with `--agents` it has shanty's agents in
all pods and no rank, which few cores can do for many more of them. Printed are medians and ranges
of seconds from the start of the command to all pods running, and from there to all ranks joined, or
all agents there; the requests; and beside it what an operator needs that makes its pods by 5
requests a second, as client-go's default limit is (`--kube-api-qps` of the MPI operator).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import figures

QPS, BURST = 5, 10  # of client-go
OBJECTS = 1  # a pod for each worker; what there is once does not count
SCRIPT = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"


def measure(args: argparse.Namespace, folder: Path, pods: int) -> dict[str, float]:
    work, home = folder / "work", folder / "home"
    work.mkdir(exist_ok=True)
    (work / "join.py").write_text(SCRIPT)
    requests = {"cpu": args.cpu}
    container = {"name": "run", "resources": {"requests": requests}}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    (work / "patch.yaml").write_text(json.dumps(patch))
    words = ["run", "-q", "--on", "k8s", "--image", args.image, "--packages", "none"]
    words += ["--k8s-patch", "patch.yaml", "--start-timeout", "10m"]
    words += ["--nodes", str(pods), "--", "true"] if args.agents else ["-n", str(pods), "join.py"]
    environ = {**os.environ, "SHANTY_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "shanty", *words], cwd=work, env=environ, check=True)
    run = max((home / "runs").iterdir())
    created = json.loads((run / "status.json").read_text())["created"]
    own = {line["event"]: line for line in lines(run / "watcher.jsonl")}
    end = next(
        line["time"]
        for line in lines(run / "events.jsonl")
        if (line["event"] == "launching" if args.agents else is_joined(line))
    )
    running = own["pods-running"]["time"]
    return {
        "to running": running - created,
        "to the end": end - running,
        "requests": own["prepared"]["requests"],
    }


def is_joined(event: dict[str, Any]) -> bool:
    return event["event"] == "state" and event["status"]["state"] == "running"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = figures.options(__doc__, 3)
    parser.add_argument("--image", required=True)
    parser.add_argument("--pods", default="2,8,32,64")
    parser.add_argument("--agents", action="store_true")
    parser.add_argument("--cpu", default="10m")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    last = "to agents there" if args.agents else "to joined"
    print(f"pods  to running       {last:16} requests  an operator at 5 a second")
    with tempfile.TemporaryDirectory() as folder:
        for pods in map(int, args.pods.split(",")):
            rounds = [measure(args, Path(folder), pods) for _ in range(args.repeats)]
            each = {key: sorted(one[key] for one in rounds) for key in rounds[0]}
            found[str(pods)] = each
            shown = [
                f"{statistics.median(each[key]):5.1f} [{each[key][0]:.1f}…{each[key][-1]:.1f}]"
                for key in ("to running", "to the end")
            ]
            operator = max(0.0, (OBJECTS * pods - BURST) / QPS)
            number = statistics.median(each["requests"])
            print(f"{pods:4}  {shown[0]:16} {shown[1]:16} {number:8.0f}  {operator:8.1f} s")
    figures.keep(args.out, found)


if __name__ == "__main__":
    main()
