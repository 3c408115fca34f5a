"""Hosts that are well: doctor has nothing to say, and runs warn of nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import FLAVOURS, mpi_folder

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SUM = """
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.allreduce(1) == world.size == 3
"""
COMPLAINTS = ("warning", "error", "fix:", "why:", "doctor")


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Site:
    """Runs on the lab."""
    here = Site(lab, tmp_path / "work")
    here.write("sum.py", SUM)
    return here


@pytest.mark.parametrize("number", range(20))
def test_a_run_says_nothing(site: Site, number: int) -> None:
    mpi = FLAVOURS[number % len(FLAVOURS)]
    if mpi != "openmpi5" and not (mpi_folder() / mpi).exists():
        mpi = "openmpi5"
    done = site("run", "--on", "lab", "--mpi", mpi, "-n", "3", "--ppn", "1", "sum.py")
    assert done.returncode == 0, done.stderr
    for word in COMPLAINTS:
        assert word not in done.stderr.lower(), done.stderr


def test_doctor_finds_nothing(site: Site, flavour: str) -> None:
    report = site("doctor", "lab", "--mpi", flavour, "--json")
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["findings"] == []
    assert json.loads(report.stdout)["unfinished"] == []


def test_doctor_says_so(site: Site) -> None:
    done = site("doctor", "lab")
    assert done.returncode == 0, done.stderr
    assert "nothing found" in done.stdout
    assert done.stderr == ""
