"""Kubeflow's objects: somebody's MPIJob run without the operator, ours run by it, both checked."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_runs import Kube, placed

import mpijobs
from runs import wait_for
from shanty.launch.kubernetes.cluster import Cluster
from shanty.runtime.errors import PrepareError

MPIJOBS = "apis/kubeflow.org/v2beta1"
TRAINJOBS = "apis/trainer.kubeflow.org/v1alpha1"
FLAVOURS = {"openmpi4": "OpenMPI", "openmpi5": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}


def image_of(flavour: str) -> str:
    """An image that the nodes have, with that MPI, mpi4py and sshd."""
    pattern = os.environ.get("SHANTY_TEST_KUBE_MPI_IMAGE")
    if not pattern:
        pytest.skip("SHANTY_TEST_KUBE_MPI_IMAGE names no images, as example/{}:1")
    return pattern.format(flavour)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[None]:
    """The operator, or what stands in for it: a program that works until it is ended."""
    line = os.environ.get("SHANTY_TEST_KUBE_OPERATOR")
    if not line:
        pytest.skip("SHANTY_TEST_KUBE_OPERATOR names no program that reconciles MPIJobs")
    with (tmp_path / "operator.log").open("wb") as log:
        process = subprocess.Popen(shlex.split(line), stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)


@pytest.fixture
def admin(kube: Kube) -> Cluster:
    """The cluster for who may do all, in the user's namespace."""
    found = kube.cluster(kube.admin)
    found.namespace = kube.cluster().namespace
    return found


@pytest.mark.parametrize("version", ["v2beta1", "v1"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_somebodys_mpijob_without_the_operator(kube: Kube, flavour: str, version: str) -> None:
    file = mpijobs.write(kube.shanty.folder, FLAVOURS[flavour], image_of(flavour), version=version)
    done = kube.shanty("run", "--on", "k8s", "-f", file, env=kube.env)
    assert done.returncode == 0, done.stderr
    pods = mpijobs.hosts_of(done.stdout)
    assert len(pods) == 2
    assert all(pod.startswith(f"shanty-{kube.last.id}") for pod in pods)


@pytest.mark.parametrize("flavour", ["openmpi4", "openmpi5"])
def test_our_mpijob_by_the_operator(kube: Kube, operator: None, flavour: str) -> None:
    mpi = ("--mpi", flavour.replace("openmpi5", "openmpi"))
    words = ("--on", "k8s", "--image", image_of(flavour), *mpi, "--as", "mpijob")
    done = kube.shanty("run", *words, "-n", "4", "--nodes", "2", "hello.py", env=kube.env)
    assert done.returncode == 0, done.stderr
    assert [pod.rpartition("-")[2] for pod in placed(done.stderr, 4)] == ["0", "1"]


def test_open_mpi_5_with_what_the_operator_sets_alone(
    kube: Kube, admin: Cluster, operator: None
) -> None:
    """All ranks are on the launcher: it has no host file that PRRTE would read."""
    text = mpijobs.mpijob("OpenMPI", image_of("openmpi5"), name="plain")
    text = text.replace('"4"', '"2"').replace('"-bind-to"', '"--bind-to"')  # as PRRTE takes it
    job = json.loads(text.partition("---\n")[2])
    admin.call("POST", admin.path("mpijobs", group=MPIJOBS), job)
    try:
        names: list[str] = []

        def ended() -> bool:
            selector = "training.kubeflow.org%2Fjob-name%3Dplain"
            pods = admin.call("GET", f"{admin.path('pods')}?labelSelector={selector}")["items"]
            names[:] = [
                pod["metadata"]["name"]
                for pod in pods
                if "launcher" in pod["metadata"]["name"] and pod["status"]["phase"] == "Succeeded"
            ]
            return bool(names)

        wait_for(ended, 90, "the launcher does not end")
        said = b"".join(admin.stream(admin.path("pods", f"{names[0]}/log"))).decode()
    finally:
        admin.call("DELETE", admin.path("mpijobs", "plain", MPIJOBS))
    hosts = mpijobs.hosts_of(said, ranks=2)
    assert len(hosts) == 1 and "launcher" in hosts[0]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kind", ["mpijob", "trainjob"])
def test_our_objects_pass_the_servers_checks(
    kube: Kube, admin: Cluster, kind: str, flavour: str
) -> None:
    words = ["--on", f"k8s:/{admin.namespace}", "--image", "example/any:1", "--as", kind]
    words += ["--mpi", flavour.replace("openmpi5", "openmpi"), "-n", "4", "--nodes", "2"]
    words += ["--dry-run", "-o", "json"]
    done = kube.shanty("run", *words, "hello.py", env={"KUBECONFIG": str(kube.admin)})
    assert done.returncode == 0, done.stderr
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    made = items[-1]
    assert made["kind"].lower() == kind
    group, plural = {"mpijob": (MPIJOBS, "mpijobs"), "trainjob": (TRAINJOBS, "trainjobs")}[kind]
    path = admin.path(plural, group=group)
    admin.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", made)
    if kind == "mpijob":
        assert made["spec"]["mpiImplementation"] == FLAVOURS[flavour]
        made["spec"]["mpiImplementation"] = "LAM"
        with pytest.raises(PrepareError):  # so the server does check
            admin.call("POST", f"{path}?dryRun=All", made)


def test_an_operator_that_is_not_there(kube: Kube, admin: Cluster) -> None:
    """A cluster that does not know the kind."""
    from shanty.launch.targets.kubernetes_operator import try_out
    from shanty.runtime.spec import JobSpec, Script

    made = {"apiVersion": "kubeflow.org/v9", "kind": "MPIJob", "metadata": {"name": "x"}}
    with pytest.raises(PrepareError, match="the cluster has no MPIJob"):
        try_out(admin, JobSpec(Script("x")), [made])
