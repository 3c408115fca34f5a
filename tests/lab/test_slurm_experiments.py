"""The platforms' lines where Slurm gives the machines: the queue is Slurm's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, SlurmSite, site_in

from launches import LONG
from platform_lines import CLUSTERONE, GRADIENT, WHERE, created, repository
from runs import wait_for

__all__ = ["repository"]

pytestmark = [LONG, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

TYPES = ("--workerMachineType", "p2.xlarge", "--masterMachineType", "p2.xlarge")


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmSite]:
    with site_in(cluster, tmp_path / "work") as here:
        for name, partition in (("p2.xlarge", "main"), ("c3.large", "short")):
            words = ("--on", f"slurm:{cluster.login}", "--partition", partition, "--slots", "1")
            added = here("machines", "add", name, *words)
            assert added.returncode == 0, added.stderr
        yield here


def test_the_line_of_gradients_page(site: SlurmSite, repository: str, flavour: str) -> None:
    words = (*TYPES, "--mpi", flavour, "--workspace", repository)
    run = created(site(*GRADIENT, *words), site.lab.shanty.home)
    found = site.await_state(run, "succeeded", patience=120)
    assert found["target"] == "slurm"
    out = site("experiments", "logs", "--id", "mpi-test").stdout
    assert all(f"of 3 on {node} 5" in out for node in site.cluster.nodes)
    assert (run.artifacts / "model.txt").read_text() == "saved"
    wait_for(lambda: not site.left(run), 15, "something is left")


def test_the_line_of_clusterones_page(site: SlurmSite, flavour: str) -> None:
    site.write("openmpi/horovod/main.py", WHERE)
    words = ("--worker-type", "p2.xlarge", "--ps-type", "p2.xlarge", "--mpi", flavour)
    run = created(site(*CLUSTERONE, *words), site.lab.shanty.home)
    site.await_state(run, "succeeded", patience=120)
    assert site("logs", run.id).stdout.count("of 3 on") == 3


def test_what_a_queue_does_not_know(site: SlurmSite) -> None:
    """Two types, a priority of shanty's, an image of the master's own: said before anything is."""
    words = ("experiments", "create", "multinode", "--workerCount", "2", "--workspace", "none")
    words = (*words, "--masterCommand", "true", "--workerMachineType", "p2.xlarge")
    other = site(*words, "--masterMachineType", "c3.large")
    assert other.returncode == 2, other.stderr
    assert "not available together" in other.stderr
    other = site(*words, "--masterMachineType", "p2.xlarge", "--priority", "3")
    assert other.returncode == 2, other.stderr
    assert "given by slurm" in other.stderr
