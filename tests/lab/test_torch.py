"""The `mpi` backend over three hosts, on every MPI: the calls, and a rank that does not come."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import WORKERS
from torch_runs import checks

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPTS = ("harness.py", "torch_collectives.py", "torch_ways.py", "torch_mistakes.py")


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    for name in SCRIPTS:
        shutil.copy(WORKERS / name, here.folder)
    yield here


@pytest.mark.parametrize("script", ["torch_collectives.py", "torch_ways.py"])
def test_calls(site: Site, flavour: str, script: str) -> None:
    place = ("--on", "lab", "--mpi", flavour, "-n", "3", "--ppn", "1")
    done = site("run", "-q", *place, script, timeout=200)
    for name in checks(script):
        assert f"ok {name}\n" in done.stdout, f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, done.stderr


def test_mismatches(site: Site) -> None:
    place = ("--on", "lab", "-n", "3", "--ppn", "1", "-e", "SHANTY_CHECK=1")
    done = site("run", "-q", *place, "torch_mistakes.py", timeout=200)
    for name in checks("torch_mistakes.py"):
        assert f"ok {name}\n" in done.stdout, f"{done.stdout}\n{done.stderr}"
