"""XGBoost's script of old over three hosts, on every MPI."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

import fashion
import rabit_runs
from launches import LONG
from runs import FLAVOURS, WORKERS

pytestmark = [rabit_runs.NEEDS, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]

MAIN = Path(__file__).parents[2] / "examples" / "xgboost" / "main.py"


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    for path in (MAIN, WORKERS / "xgb_main.py"):
        shutil.copy(path, here.folder)
    fashion.write(here.folder)
    yield here


@pytest.mark.parametrize(
    "mpi",
    ["openmpi5", *(pytest.param(each, marks=LONG) for each in FLAVOURS if each != "openmpi5")],
)
def test_the_unchanged_script(site: Site, mpi: str) -> None:
    line = ("dmlc-submit", "--cluster", "mpi", "--num-workers", "3", "--worker-cores", "1")
    place = ("--on", "lab", "--mpi", mpi)
    words = ("--num_round", str(rabit_runs.ROUNDS), "--data_dir", ".")
    done = site(*line, *place, "python", "xgb_main.py", "main.py", *words, timeout=300)
    assert done.returncode == 0, done.stderr
    rabit_runs.judge(done, site.last.artifacts, site.folder)
    hosts = {line.rpartition(" on ")[2] for line in done.stdout.splitlines() if " of 3 on " in line}
    assert len(hosts) > 1, done.stdout
