"""Every byte that the ranks write arrives, whole lines, in order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runs import LONG, wait_for

MANY = """
import sys
rank = int(__import__("os").environ["RANK"])
count, width = int(sys.argv[1]), int(sys.argv[2])
for number in range(count):
    head = f"{rank} {number} "
    sys.stdout.write(head + "x" * (width - len(head) - 1) + "\\n")
"""

ODD = rb"""
import os
rank = os.environ["RANK"].encode()
os.write(1, b"bytes \xff\xfe\x00 of " + rank + b"\n")
os.write(2, b"error of " + rank + b"\n")
os.write(1, b"no newline from " + rank)
"""


# Ranks, lines of each, and bytes of a line: many ranks, and lines as long as a pipe's buffer.
LARGE = [(64, 5000, 200), (4, 1000, 65536)] if LONG else [(16, 2000, 200), (4, 250, 65536)]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "count", "width"), LARGE)
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_torn(shanty, flavour, ranks, count, width, record_property):
    script = shanty.script(MANY)
    done = shanty(
        "run", "--mpi", flavour, "-n", ranks, "--oversubscribe", script, count, width, timeout=300
    )
    assert done.returncode == 0, done.stderr
    expected = dict.fromkeys(range(ranks), 0)
    for line in done.stdout.splitlines():
        label, rank, number, rest = line.split(" ", 3)
        assert label == f"[{rank}]"
        assert int(number) == expected[int(rank)]
        assert len(line) == width - 1 + len(label) + 1
        assert rest.strip("x") == ""
        expected[int(rank)] += 1
    assert set(expected.values()) == {count}
    status = shanty.status()
    rate = ranks * count / (status["ended"] - status["started"])
    record_property("lines_per_second", round(rate))
    print(f"{flavour}: {ranks} ranks x {count} lines of {width} bytes: {rate:.0f} lines/s")


def test_odd_bytes_and_a_missing_last_newline(shanty, flavour):
    (shanty.folder / "odd.py").write_bytes(ODD)
    process = shanty.start("run", "-q", "--mpi", flavour, "-n", 2, "odd.py")
    out, err = process.communicate(timeout=60)
    assert sorted(out.splitlines()) == sorted(
        line
        for rank in (b"0", b"1")
        for line in (
            b"[" + rank + b"] bytes \xff\xfe\x00 of " + rank,
            b"[" + rank + b"] no newline from " + rank,
        )
    )
    assert sorted(err.splitlines()) == [b"[0] error of 0", b"[1] error of 1"]


def test_a_single_rank_comes_through_unchanged(shanty):
    (shanty.folder / "odd.py").write_bytes(ODD)
    process = shanty.start("run", "-q", "-n", 1, "odd.py")
    out, err = process.communicate(timeout=60)
    assert out == b"bytes \xff\xfe\x00 of 0\nno newline from 0"
    assert err == b"error of 0\n"


def resident(pid: int) -> int:
    """Resident memory in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


TIMES = 2500 if LONG else 500  # 1000 lines each, 17 bytes long


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_agents_do_not_grow_with_the_output(shanty):
    script = shanty.script(
        "import os, sys\nfrom mpi4py import MPI\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "sys.stdin.readline() if MPI.COMM_WORLD.rank == 0 else None\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "line = 'a line of output\\n' * 1000\n"
        f"for i in range({TIMES}): sys.stdout.write(line)\n"
    )
    import subprocess

    process = shanty.start(
        "run", "-q", "-n", 2, script, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    wait_for(lambda: shanty.status().get("joined") == 2)
    agents = shanty.agents()
    before: dict[str, int] = {}
    since = time.monotonic()

    def has_settled() -> bool:
        """The node agent loads what it may need later (5 MB) once the ranks have started."""
        nonlocal before, since
        now = {name: resident(pid) for name, pid in agents.items()}
        if any(now[name] > before.get(name, 0) + 256 for name in now):
            before, since = now, time.monotonic()
        return time.monotonic() > since + 1.0

    wait_for(has_settled)
    process.stdin.write(b"go\n")
    process.stdin.flush()
    most = dict(before)

    def look() -> bool:
        for name, pid in agents.items():
            try:
                most[name] = max(most[name], resident(pid))
            except (OSError, StopIteration):
                return True
        return process.poll() is not None

    wait_for(look, 300)
    process.communicate(timeout=60)
    assert process.returncode == 0
    lines = sum(path.read_bytes().count(b"\n") for path in shanty.last.logs.glob("rank-*.log"))
    assert lines == 2 * 1000 * TIMES
    growth = {name: most[name] - before[name] for name in agents}
    print(f"growth in KiB with {lines} lines: {growth}")
    assert max(growth.values()) <= 5 * 1024


def test_json_lines(shanty):
    import json

    done = shanty("run", "--json", "-n", 2, "echo", "hello")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "started"
    assert events[-1]["event"] == "ended"
    assert events[-1]["state"] == "succeeded"
    assert sorted((e["rank"], e["text"]) for e in events if e["event"] == "output") == [
        (0, "hello"),
        (1, "hello"),
    ]
