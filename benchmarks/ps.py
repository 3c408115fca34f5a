"""How long `shanty ps` takes with 200 runs, 10 of them on hosts that cannot be reached.

    python benchmarks/ps.py [--repeats 7] [--runs 200] [--unreachable 10] [--out FILE]

The hosts are real: a lab of two, the one cut off its network, the other frozen. The runs are
directories as they are after a run: those there are under way, all others have ended here. Each
round lists all runs with an index, without one (it is made anew), and again with none of them
unreachable. Printed are medians and quartiles of wall-clock seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

import figures
from hosts_lab import Home, home, lab

from shanty.launch import inventory
from shanty.runtime.rundir import RunDir, new_id, write_json
from shanty.runtime.spec import JobSpec, Script, State, Status


def make_run(where: Home, created: float, state: State) -> RunDir:
    run = RunDir(where.path / "runs" / new_id(created))
    run.create()
    job = JobSpec(Script("train.py", ("--epochs", "3")), 4, workdir=str(where.workspace))
    write_json(run.job, job.to_json())
    ended = created + 60 if state.final else None
    status = Status(state, 4, 4, 4, created, created + 1, ended, 0 if ended else None)
    write_json(run.status, status.to_json())
    return run


def timed(where: Home, runs: int) -> float:
    began = time.perf_counter()
    listed = where.shanty("ps", "--all", "--quiet")
    took = time.perf_counter() - began
    if len(listed.split()) != runs:
        raise SystemExit(f"{len(listed.split())} runs are listed, not {runs}")
    return took


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    cases = ("an index", "no index", "an index, all reachable")
    times: dict[str, list[float]] = {case: [] for case in cases}
    now = time.time()
    with home() as one, home() as other, lab(one, 2) as name:
        hosts = inventory.resolve(name, one.path)
        one.shanty("lab", "cut", hosts[0].name)
        one.shanty("lab", "freeze", hosts[1].name)
        for number in range(args.runs):
            created = now - 3600 + number
            there = number % (args.runs // args.unreachable) == 0
            run = make_run(one, created, State.RUNNING if there else State.SUCCEEDED)
            if there:
                host = hosts[number // (args.runs // args.unreachable) % 2]
                write_json(run.site, {"hosts": [asdict(host)]})
            make_run(other, created, State.SUCCEEDED)
        timed(one, args.runs)
        timed(other, args.runs)
        for number in range(args.repeats):
            times["an index"].append(timed(one, args.runs))
            for file in one.path.glob("index.sqlite*"):
                file.unlink()
            times["no index"].append(timed(one, args.runs))
            times["an index, all reachable"].append(timed(other, args.runs))
            print(f"round {number + 1} of {args.repeats}", file=sys.stderr)
    return times


def main() -> None:
    parser = figures.options(__doc__, 7)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--unreachable", type=int, default=10)
    args = parser.parse_args()
    times = measure(args)
    for case, found in times.items():
        print(f"{case:<24} {figures.quartiles(found)} s")
    figures.keep(args.out, {"arguments": str(args), "seconds": times})


if __name__ == "__main__":
    main()
