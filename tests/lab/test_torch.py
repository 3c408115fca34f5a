"""The `mpi` backend over three hosts, on every MPI."""

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

CALLS = ("torch_collectives", "torch_ways")


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    for name in ("checks", "run_checks", "on_distributed", *CALLS):
        shutil.copy(WORKERS / f"{name}.py", here.folder)
    yield here


def test_calls(site: Site, flavour: str) -> None:
    place = ("--on", "lab", "--mpi", flavour, "-n", "3", "--ppn", "1")
    words = ("run_checks.py", "distributed", ",".join(CALLS))
    done = site("run", "-q", *place, *words, timeout=250)
    all_passed(done, *(f"{name}.py" for name in CALLS))
