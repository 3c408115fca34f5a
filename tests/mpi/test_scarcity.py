"""The disk fills up and memory runs out in the middle of a run: said as what it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def unshare(folder: Path) -> list[str]:
    """How to get a place where a file system can be mounted on `folder`."""
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        test = [*words, "mount", "-t", "tmpfs", "none", str(folder)]
        if shutil.which("unshare") and not subprocess.run(test, capture_output=True).returncode:
            return words
    pytest.skip("no file system can be mounted here (unshare -m)")


def test_the_disk_fills_up(shanty, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    script = shanty.script("for i in range(100000): print('line', i, 'x' * 80)\n")
    inner = (
        'mount -t tmpfs -o size=2m none "$1" && SHANTY_HOME="$1" "$2" -m shanty run -q -n 2 "$3"; '
        'code=$?; SHANTY_HOME="$1" "$2" -m shanty ps --json >&2; exit $code'
    )
    done = subprocess.run(
        [*unshare(folder), "sh", "-c", inner, "sh", folder, sys.executable, script],
        env=shanty.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 73, done.stderr
    assert "its output cannot be kept: No space left on device" in done.stderr
    assert "free some space" in done.stderr
    assert '"state": "failed"' in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stdout.splitlines()) > 1000  # what there was room for is there


def test_memory_runs_out(shanty, memory_limit):
    script = shanty.script(
        "from mpi4py import MPI\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "hoard = bytearray(600 << 20) if MPI.COMM_WORLD.rank == 1 else None\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    inner = 'echo $$ > "$1" && exec "$2" -m shanty run -q -n 2 "$3"'
    done = subprocess.run(
        ["sh", "-c", inner, "sh", memory_limit, sys.executable, script],
        env=shanty.environ,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=shanty.folder,
    )
    assert done.returncode == 137, done.stderr
    assert "rank 1" in done.stderr
    assert "out of memory" in done.stderr
