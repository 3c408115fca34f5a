"""The `mpi` backend over three hosts, on every MPI: the calls, and a rank that does not come."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from launches import all_passed
from runs import WORKERS

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPTS = (
    *("checks.py", "run_checks.py", "on_distributed.py"),
    *("torch_collectives.py", "torch_ways.py", "torch_mistakes.py"),
)


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    for name in SCRIPTS:
        shutil.copy(WORKERS / name, here.folder)
    yield here


def test_calls(site: Site, flavour: str) -> None:
    place = ("--on", "lab", "--mpi", flavour, "-n", "3", "--ppn", "1")
    words = ("run_checks.py", "distributed", "torch_collectives,torch_ways")
    done = site("run", "-q", *place, *words, timeout=250)
    all_passed(done, "torch_collectives.py", "torch_ways.py")


def test_mismatches(site: Site) -> None:
    place = ("--on", "lab", "-n", "3", "--ppn", "1", "-e", "SHANTY_CHECK=1")
    done = site("run", "-q", *place, "torch_mistakes.py", timeout=200)
    all_passed(done, "torch_mistakes.py")
