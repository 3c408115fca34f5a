"""The platforms' lines where a cluster gives the machines: pods of one image."""

from __future__ import annotations

from pathlib import Path

import pytest
from kube_runs import Kube

from platform_lines import CLUSTERONE, GRADIENT, WHERE, created, make_repository
from shanty.runtime.rundir import RunDir, read_json

SETTINGS = '[run]\npackages = "none"\n'  # the image has the packages


@pytest.fixture
def repository(tmp_path: Path) -> str:
    return make_repository(tmp_path / "horovod.git", SETTINGS)


@pytest.fixture
def kinds(kube: Kube) -> None:
    for name in ("p2.xlarge", "c3.large"):
        kube.do("machines", "add", name, "--on", "k8s", "--slots", "1")


def create(kube: Kube, *words: str) -> RunDir:
    return created(kube.shanty(*words, env=kube.env, timeout=150), kube.shanty.home)


def gradient(kube: Kube, flavour: str, repository: str, *words: str) -> RunDir:
    containers = ("--workerContainer", kube.image, "--masterContainer", kube.image)
    types = ("--workerMachineType", "p2.xlarge", "--masterMachineType", "p2.xlarge")
    own = ("--mpi", flavour, "--workspace", repository, *words)
    return create(kube, *GRADIENT, *containers, *types, *own)


@pytest.mark.usefixtures("kinds")
def test_the_line_of_gradients_page(kube: Kube, repository: str, flavour: str) -> None:
    run = gradient(kube, flavour, repository)
    kube.await_state(run, "succeeded", seconds=200)
    out = kube.do("experiments", "logs", "--id", "mpi-test")
    hosts = {
        row.split()[row.split().index("on") + 1] for row in out.splitlines() if "of 3 on" in row
    }
    assert len(hosts) == 3, out
    assert (run.artifacts / "model.txt").read_text() == "saved"
    metrics = kube.do("experiments", "metrics", "get", run.id, "--metric", "loss", "--json")
    assert metrics.count('"loss"') == 3


@pytest.mark.usefixtures("kinds")
def test_the_line_of_clusterones_page(kube: Kube, flavour: str) -> None:
    folder = kube.shanty.folder / "openmpi" / "horovod"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(WHERE)
    (kube.shanty.folder / "shanty.toml").write_text(SETTINGS)
    types = ("--worker-type", "p2.xlarge", "--ps-type", "p2.xlarge")
    run = create(kube, *CLUSTERONE, *types, "--mpi", flavour, "--docker-image", kube.image)
    kube.await_state(run, "succeeded", seconds=200)
    assert kube.do("logs", run.id).count("of 3 on") == 3


@pytest.mark.usefixtures("kinds")
def test_an_experiment_is_stopped(kube: Kube, repository: str) -> None:
    line = "mpirun -np 3 --hostfile /generated/hostfile sleep 600"
    run = gradient(kube, "openmpi5", repository, "--masterCommand", line)
    kube.await_state(run, "running", seconds=120)
    kube.do("experiments", "stop", "--id", "mpi-test")
    assert kube.await_state(run, "stopped")["ended"] is not None
    assert (read_json(run.job) or {})["image"] == kube.image
