"""How long the dashboard takes to list and to search 10,000 runs.

    python benchmarks/dashboard.py [--runs 10000] [--repeats 50] [--out FILE]

The runs are directories as they are after a run, in a home of their own; `shanty ui` serves it as
for a person. Printed are, in milliseconds, the medians and the 95th percentiles of whole requests
over one connection, the time from the start of the program to its first answer, and that until all
runs are in the index.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import figures
import httpx

from shanty.runtime.rundir import RunDir, new_id, write_json
from shanty.runtime.spec import Failure, JobSpec, Script, State, Status

REQUESTS: dict[str, dict[str, Any]] = {
    "first page": {},
    "page 50": {"offset": 4900},
    "one word": {"search": "digits"},
    "a rare word": {"search": "needle"},
    "state and tag": {"state": "failed", "tag": "t7"},
    "by duration": {"sort": "took"},
    "by name": {"sort": "name", "order": "asc"},
}


def make_runs(home: Path, count: int) -> None:
    """Ended runs of the last weeks, of several names, tags and states."""
    chance = random.Random(1)
    now = time.time()
    states = (State.SUCCEEDED, State.SUCCEEDED, State.FAILED, State.STOPPED)
    for number in range(count):
        created = now - (count - number) * 120.0
        run = RunDir(home / "runs" / new_id(created))
        run.create()
        run.reserve.unlink()
        name = chance.choice(("digits", "mnist", "resnet", "higgs"))
        tags = tuple(f"t{chance.randrange(20)}" for _ in range(2))
        args = ("--lr", str(chance.random()), "needle" if number == count // 2 else "x")
        job = JobSpec(Script("train.py", args), 4, workdir="/home/ann", name=name, tags=tags)
        write_json(run.job, job.to_json())
        state = chance.choice(states)
        failure = Failure("rank 1 on a fell", rank=1) if state is State.FAILED else None
        ended = created + chance.random() * 3600
        status = Status(state, 4, 4, 4, created, created + 1, ended, 0, failure)
        write_json(run.status, status.to_json())


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


@contextmanager
def served(home: Path) -> Iterator[tuple[str, httpx.Client, int]]:
    """A `shanty ui` that is up: the address of its API, a client that may ask it, its pid."""
    words = [sys.executable, "-m", "shanty", "ui", "--no-browser"]
    environ = {**os.environ, "SHANTY_HOME": str(home)}
    with (
        subprocess.Popen(
            words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server,
        httpx.Client(verify=False, trust_env=False, timeout=60) as client,
    ):
        try:
            assert server.stdout is not None
            found = re.fullmatch(r"(http://\S+)/#token=(\S+)\n", server.stdout.readline())
            assert found is not None
            client.headers["Authorization"] = f"Bearer {found[2]}"
            yield f"{found[1]}/api/v1", client, server.pid
        finally:
            server.send_signal(signal.SIGINT)


def measure(home: Path, runs: int, repeats: int) -> dict[str, list[float]]:
    began = time.perf_counter()
    with served(home) as (url, client, _pid):
        client.get(f"{url}/me").raise_for_status()
        times = {"start": [(time.perf_counter() - began) * 1000]}
        while client.get(f"{url}/runs", params={"limit": 0}).json()["total"] < runs:
            time.sleep(0.05)
        times["all in the index"] = [(time.perf_counter() - began) * 1000]
        for title, query in REQUESTS.items():
            times[title] = [
                timed(lambda query=query: client.get(f"{url}/runs", params=query).json())
                for _ in range(repeats)
            ]
    return times


def main() -> None:
    parser = figures.options(__doc__, 50)
    parser.add_argument("--runs", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), args.runs)
        first = measure(Path(folder), args.runs, args.repeats)
        again = measure(Path(folder), args.runs, args.repeats)
    times = {**first, "start again": again["start"]}
    for title, found in times.items():
        print(f"{title:<18} {figures.milliseconds(found)}")
    figures.keep(args.out, {"arguments": str(args), "ms": times})


if __name__ == "__main__":
    main()
