"""Samples of the hosts of a run elsewhere: each under its name, and here while the run goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import LONG, wait_for
from shanty.launch import resources

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.skipif(not LONG, reason="waits for samples: SHANTY_TEST_LONG=1 runs it"),
]

WORK = """
import os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
data = bytearray(4 << 20)
end = time.monotonic() + 9
going = True
while going:
    world.Bcast(data, 0)  # goes from the first host to the second
    going = world.bcast(time.monotonic() < end, 0)
"""


def test_two_hosts(lab: LabHosts, tmp_path: Path) -> None:
    """The clocks of hosts of a lab are this machine's, so times are near to ours."""
    site = Site(lab, tmp_path / "work")
    site.write("work.py", WORK)
    began = time.time()
    with site.start(
        *("run", "-q", "--on", "lab1,lab2", "--mpi", "openmpi5", "-n", "2", "--ppn", "1"),
        "work.py",
    ) as process:
        wait_for(lambda: list((lab.shanty.home / "runs").glob("*")), 30, "no run")
        wait_for(lambda: site.status().get("state") == "running", 60, "it never ran")
        run = site.last
        wait_for(lambda: len(resources.read(run)) == 2, 20, "not while the run goes on")
        assert process.poll() is None
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (out, err)
    found = resources.read(run)
    assert sorted(found) == ["lab1", "lab2"]
    for series in found.values():
        assert len(series.time) >= 2
        assert all(began < each < time.time() for each in series.time)
    one, two = found["lab1"], found["lab2"]
    assert max(one.send) > 1 << 20 < max(two.receive)
    assert max(two.send) < max(one.send) / 4
