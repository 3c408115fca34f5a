"""Runs by Slurm: a laptop, a login node, allocations; what is refused, what ends a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import lab_in
from site_runs import UP
from slurm_cluster import Cluster, SlurmSite, skip_without_slurm

from runs import wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

HELLO = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
host = MPI.Get_processor_name()
print("sum", world.allreduce(1), "rank", world.rank, "task", os.environ["SLURM_PROCID"], host)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_slurm()
    with lab_in(tmp_path_factory.mktemp("slurm"), 4, "--shared-home") as lab:
        found = Cluster(lab)
        found.up()
        yield found


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmSite]:
    here = SlurmSite(cluster.lab, tmp_path / "work", cluster=cluster)
    here.write("hello.py", HELLO)
    here.write("up.py", UP)
    yield here
    cluster.clear()


def test_from_a_laptop(site: SlurmSite, flavour: str) -> None:
    done = site(*site.on, "--mpi", flavour, "-n", "3", "--nodes", "3", "hello.py")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"sum 3 rank {rank} task {rank}" in done.stdout
    assert {each for each in site.cluster.nodes if each in done.stdout} == {*site.cluster.nodes}
    wait_for(lambda: not site.left(site.last), 15, "something is left")
