"""Somebody's MPIJob, run on this machine in a container of its image."""

from __future__ import annotations

import json
import os

import pytest

import mpijobs
from engines import INTEL, MPICH, OPENMPI, ContainedShanty, long_only


@long_only
@pytest.mark.parametrize(
    ("image", "implementation", "version"),
    [
        (OPENMPI, "OpenMPI", "v2beta1"),
        (OPENMPI, "OpenMPI", "v1"),
        (MPICH, "MPICH", "v2beta1"),
        (INTEL, "Intel", "v2beta1"),
    ],
)
def test_an_mpijob_here(
    shanty: ContainedShanty, image: str, implementation: str, version: str
) -> None:
    if shanty.engine.name == "apptainer":
        pytest.skip("its images are folders, and a manifest names one of a registry")
    shanty.engine.load(image)
    file = mpijobs.write(shanty.folder, implementation, image, version=version)
    done = shanty("run", "--runtime", shanty.engine.name, "--manifest", file)
    assert done.returncode == 0, done.stderr
    assert mpijobs.hosts_of(done.stdout) == [os.uname().nodename]


def test_what_only_a_cluster_has(shanty: ContainedShanty) -> None:
    """It is named before the start, and `-e` gives it, also to values that refer to it."""
    if shanty.engine.name == "apptainer":
        pytest.skip("its images are folders, and a manifest names one of a registry")
    show = "import os; print('seen', [os.environ.get(name) for name in ('KEY', 'POD', 'WHO')])"
    made = json.loads(mpijobs.mpijob("OpenMPI", shanty.engine.image).partition("---\n")[2])
    made["spec"] |= {"slotsPerWorker": 1, "runPolicy": {"backoffLimit": 2}}
    replicas = made["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    launcher |= {"command": ["mpirun", "-np", "2", "python3"], "args": ["-c", show]}
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    worker["env"] = [
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TEAM", "value": "blue"},
        {"name": "WHO", "value": "$(TEAM)-$(KEY)-$$(KEY)"},
    ]
    replicas["Worker"]["template"]["spec"]["volumes"] = [{"name": "x", "emptyDir": {}}]
    file = shanty.folder / "mpijob.yaml"
    file.write_text(json.dumps(made))
    words = ("run", "--runtime", shanty.engine.name, "--manifest", file, "--mpi", "openmpi")
    done = shanty(*words, "--packages", "none", "-e", "KEY=s3cret")
    assert done.returncode == 0, done.stderr
    seen = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert seen == ["seen ['s3cret', None, 'blue-s3cret-$(KEY)']"] * 2
    for named in (
        "the variable POD: its value is metadata.name of the pod; -e POD=VALUE sets it",
        "spec.runPolicy.backoffLimit: --retries N starts again where a host was lost",
        "spec.mpiReplicaSpecs.Worker.template.spec.volumes: --mount SOURCE:TARGET",
    ):
        assert named in done.stderr
    assert "KEY: its value" not in done.stderr
