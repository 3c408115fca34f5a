"""LightGBM over hosts: the model is that of as many ranks on one machine, on every MPI."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import WORKERS

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    shutil.copy(WORKERS / "lgb_network.py", here.folder)
    yield here


def told(site: Site, *words: str) -> list[dict[str, Any]]:
    """What each rank tells of its model."""
    done = site("run", *words, "lgb_network.py", "data", timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return [json.loads(line[line.index("{") :]) for line in lines if '"digest"' in line]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_model_is_that_of_one_machine(site: Site, flavour: str, ranks: int) -> None:
    here = told(site, "--mpi", flavour, "-n", str(ranks), "--oversubscribe")
    there = told(site, "--mpi", flavour, "-n", str(ranks), "--ppn", str(ranks // 2), "--on", "lab")
    assert len(here) == len(there) == ranks
    assert len({each["digest"] for each in [*here, *there]}) == 1
    assert len({each["host"] for each in there}) == 2
