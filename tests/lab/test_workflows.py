"""Tasks of Prefect and Dagster over hosts, whose ranks load neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

import workflow_runs
from launches import LONG

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400), LONG]

PREFECT = """
from prefect import flow
from shanty.workflows.prefect import task

@task(ranks=2, on="lab", ranks_per_host=1)
def where(word):
    import os, sys
    from mpi4py import MPI
    assert "prefect" not in sys.modules
    host = MPI.Get_processor_name()
    print(word, "from", host)
    return MPI.COMM_WORLD.gather(host)

@flow
def whole():
    print("value", where("hello"))

if __name__ == "__main__":
    whole()
"""
DAGSTER = """
import dagster
from shanty.workflows.dagster import ranks_asset

@ranks_asset(ranks=2, on="lab", ranks_per_host=1)
def where():
    import os, sys
    from mpi4py import MPI
    assert "dagster" not in sys.modules
    host = MPI.Get_processor_name()
    print("hello from", host)
    return MPI.COMM_WORLD.gather(host)

if __name__ == "__main__":
    print("value", dagster.materialize([where]).output_for_node("where"))
"""


PROGRAMS = {"prefect": PREFECT, "dagster": DAGSTER}


@pytest.mark.parametrize("package", PROGRAMS)
def test_on_hosts(lab: LabHosts, tmp_path: Path, package: str) -> None:
    site = Site(lab, tmp_path / "work")
    site.write("flows.py", PROGRAMS[package])
    with workflow_runs.started(package, lab.shanty.home, site.folder, "flows.py") as program:
        out = program.wait(300)
    assert program.process.returncode == 0, out
    first, second, *_ = lab.hosts
    assert f"value ['{first}', '{second}']" in out.splitlines(), out
    assert f"[0] hello from {first}" in out
    assert f"[1] hello from {second}" in out
