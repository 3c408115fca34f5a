"""Kubeflow's objects: somebody's MPIJob run without the operator, ours run by it, both checked."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pathspec
import pytest
from kube_runs import Kube, placed

import mpijobs
import shanty
from runs import wait_for
from shanty.launch.kubernetes.cluster import Cluster
from shanty.launch.kubernetes.pod_exec import CONTAINER, PodExec
from shanty.runtime.errors import LaunchError, PrepareError
from shanty.runtime.site import Host

MPIJOBS = "apis/kubeflow.org/v2beta1"
TEMPLATE = "spec.mpiReplicaSpecs.Worker.template.spec"
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
    return kube.by_admin


def launcher_of(admin: Cluster, job: str, phase: str) -> str:
    """The launcher's pod of an MPIJob, once it is in that phase."""
    path = f"{admin.path('pods')}?labelSelector=training.kubeflow.org%2Fjob-name%3D{job}"
    names: list[str] = []

    def is_there() -> bool:
        found = {
            pod["metadata"]["name"]: pod["status"]["phase"]
            for pod in admin.call("GET", path)["items"]
        }
        names[:] = [name for name in found if "launcher" in name and found[name] == phase]
        return bool(names)

    wait_for(is_there, 90, f"the launcher is not {phase}")
    return names[0]


@pytest.mark.parametrize("version", ["v2beta1", "v1"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_somebodys_mpijob_without_the_operator(kube: Kube, flavour: str, version: str) -> None:
    file = mpijobs.write(kube.shanty.folder, FLAVOURS[flavour], image_of(flavour), version=version)
    done = kube.shanty("run", "--on", "k8s", "--manifest", file, env=kube.env)
    assert done.returncode == 0, done.stderr
    pods = mpijobs.hosts_of(done.stdout)
    assert len(pods) == 2
    assert all(pod.startswith(f"shanty-{kube.last.id}") for pod in pods)


SHOW = (
    "import os, sys; names = 'KEY', 'POD', 'WHO', 'PLAIN', 'ROOM'; "
    "print('seen', [os.environ.get(name) for name in names], sys.argv[1:], "
    "open('/data/first').read().strip(), flush=True)"
)


def test_what_a_manifest_leaves_to_the_cluster(kube: Kube, admin: Cluster) -> None:
    """Variables of Secrets, ConfigMaps and pods, volumes, init containers, probes of an sshd."""
    secret = {"secretKeyRef": {"name": "test-keys", "key": "api"}}
    objects = [
        {"kind": "Secret", "metadata": {"name": "test-keys"}, "stringData": {"api": "s3 $(X)"}},
        {"kind": "ConfigMap", "metadata": {"name": "test-teams"}, "data": {"TEAM": "blue"}},
    ]
    mount = {"name": "data", "mountPath": "/data"}
    room = {"containerName": "worker", "resource": "limits.memory", "divisor": "1Mi"}
    own = {"image": kube.image, "imagePullPolicy": "IfNotPresent"}
    launcher = {
        **own, "name": "launcher", "command": ["mpirun", "-np", "2", "python3", "-c", SHOW],
        "args": ["$(KEY)", "$$(KEY)", "$(NO) it's"],
        "env": [{"name": "KEY", "valueFrom": secret}],
    }  # fmt: skip
    worker = {
        **own, "name": "worker", "volumeMounts": [mount],
        "readinessProbe": {"tcpSocket": {"port": 2222}},
        "resources": {"limits": {"memory": "256Mi"}},
        "envFrom": [{"configMapRef": {"name": "test-teams"}}],
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "WHO", "value": "$(TEAM) on $(POD) $$(POD)"},
            {"name": "PLAIN", "value": "$$(POD)"},
            {"name": "ROOM", "valueFrom": {"resourceFieldRef": room}},
        ],
    }  # fmt: skip
    first = {**own, "name": "first", "command": ["sh", "-c", "echo made > /data/first"],
             "volumeMounts": [mount]}  # fmt: skip
    pod = {"containers": [worker], "initContainers": [first],
           "volumes": [{"name": "data", "emptyDir": {}}]}  # fmt: skip
    made = json.loads(mpijobs.mpijob("OpenMPI", kube.image).partition("---\n")[2])
    made["metadata"] = {"name": "kept", "namespace": admin.namespace, "labels": {"team": "blue"}}
    made["spec"] |= {"slotsPerWorker": 1, "runPolicy": {"backoffLimit": 2}}
    replicas = made["spec"]["mpiReplicaSpecs"]
    replicas["Launcher"]["template"]["spec"] = {"containers": [launcher]}
    replicas["Worker"]["template"]["spec"] = pod
    file = kube.shanty.folder / "mpijob.yaml"
    file.write_text(json.dumps({"kind": "List", "items": [*objects, made]}))
    words = ("run", "--on", "k8s", "--manifest", file, "--mpi", "openmpi", "--packages", "none")
    for one in objects:
        admin.call("POST", admin.path(f"{one['kind'].lower()}s"), {"apiVersion": "v1", **one})
    try:
        done = kube.shanty(*words, env=kube.env, timeout=150)
        assert done.returncode == 0, done.stderr
        seen = sorted(line for line in done.stdout.splitlines() if "seen" in line)
        assert len(seen) == 2
        for rank, line in enumerate(seen):
            name = line.partition(" on ")[2].partition(" ")[0]
            assert name.startswith(f"shanty-{kube.last.id}")
            assert line == (
                f"[{rank}] seen ['s3 $(X)', '{name}', 'blue on {name} $(POD)', '$(POD)', '256'] "
                "['s3 $(X)', '$(KEY)', \"$(NO) it's\"] made"
            )
        for named in ("backoffLimit: --retries", "readinessProbe", "ConfigMap test-teams: it is"):
            assert named in done.stderr
        assert ".env" not in done.stderr and "volumes" not in done.stderr
        worker["securityContext"] = {"runAsUsr": 5}  # older servers pass over it
        file.write_text(json.dumps(made))
        done = kube.shanty(*words, env=kube.env)
        assert done.returncode != 0 and "runAsUsr" in done.stderr
        made["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["contianers"] = []
        file.write_text(json.dumps(made))
        done = kube.shanty(*words, env=kube.env)
        assert done.returncode == 2
        assert f"unknown field {TEMPLATE}.contianers" in done.stderr
        assert "did you mean containers?" in done.stderr
    finally:
        for one in objects:
            admin.call("DELETE", admin.path(f"{one['kind'].lower()}s", one["metadata"]["name"]))


@pytest.mark.parametrize("flavour", ["openmpi4", "openmpi5"])
def test_our_mpijob_by_the_operator(kube: Kube, operator: None, flavour: str) -> None:
    mpi = ("--mpi", flavour.replace("openmpi5", "openmpi"))
    words = ("--on", "k8s", "--image", image_of(flavour), *mpi, "--operator", "mpijob")
    done = kube.shanty("run", *words, "-n", "4", "--nodes", "2", "hello.py", env=kube.env)
    assert done.returncode == 0, done.stderr
    assert [pod.rpartition("-")[2] for pod in placed(done.stderr, 4)] == ["0", "1"]


def test_a_cluster_with_the_kind_and_no_operator(kube: Kube) -> None:
    words = ("--on", "k8s", "--image", "example/any:1", "--operator", "mpijob", "-n", "2")
    done = kube.shanty("run", *words, "--schedule-timeout", "8s", "hello.py", env=kube.env)
    assert done.returncode == LaunchError.exit_code, done.stderr
    assert "no operator has taken up the MPIJob" in done.stderr


def test_open_mpi_5_with_what_the_operator_sets_alone(
    kube: Kube, admin: Cluster, operator: None
) -> None:
    """All ranks are on the launcher: it has no host file that PRRTE would read."""
    text = mpijobs.mpijob("OpenMPI", image_of("openmpi5"), name="plain")
    text = text.replace('"4"', '"2"').replace('"-bind-to"', '"--bind-to"')  # as PRRTE takes it
    job = json.loads(text.partition("---\n")[2])
    admin.call("POST", admin.path("mpijobs", group=MPIJOBS), job)
    try:
        name = launcher_of(admin, "plain", "Succeeded")
        said = b"".join(admin.stream(admin.path("pods", f"{name}/log"))).decode()
    finally:
        admin.call("DELETE", admin.path("mpijobs", "plain", MPIJOBS))
    hosts = mpijobs.hosts_of(said, ranks=2)
    assert len(hosts) == 1 and "launcher" in hosts[0]


def library(work: Path) -> bytes:
    """A tar of what an image with shanty has more: it, what its commands need, and a script."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        for module in (shanty, click, pathspec):
            folder = Path(str(module.__file__)).parent
            tar.add(folder, folder.name)
        tar.add(work, "work")
    return found.getvalue()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_inside_the_operators_launcher(
    kube: Kube, admin: Cluster, operator: None, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the command: the hosts are the workers, in whose pods no key can be added."""
    name = f"inner-{flavour}"
    text = mpijobs.mpijob(FLAVOURS[flavour], image_of(flavour), name=name)
    job = json.loads(text.partition("---\n")[2])
    (launcher,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    launcher |= {"name": CONTAINER, "command": ["sleep", "600"], "args": []}
    launcher["resources"]["limits"]["memory"] = "512Mi"
    monkeypatch.setenv("KUBECONFIG", str(kube.admin))
    admin.call("POST", admin.path("mpijobs", group=MPIJOBS), job)
    try:
        there = launcher_of(admin, name, "Running")
        pod = PodExec(Host(there, pod=f"/{admin.namespace}"))
        data = library(kube.shanty.folder)
        unpack = f"import io, sys, tarfile; data = sys.stdin.buffer.read({len(data)}); "
        unpack += "tarfile.open(fileobj=io.BytesIO(data)).extractall('/tmp/lib')"
        unpacking = pod.start(["python3", "-c", unpack])
        unpacking.stdin.write(data)
        assert unpacking.wait(60) == 0, unpacking.stderr.read()
        line = ["env", "PYTHONPATH=/tmp/lib", "python3", "-m", "shanty", "run"]
        running = pod.start([*line, "-C", "/tmp/lib/work", "-n", "4", "hello.py"])
        said = running.stdout.read().decode()
        assert running.wait(10) == 0, running.stderr.read().decode()
    finally:
        admin.call("DELETE", admin.path("mpijobs", name, MPIJOBS))
    assert placed(said, 4) == [f"{name}-worker-{index}" for index in range(2)]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kind", ["mpijob", "trainjob"])
def test_our_objects_pass_the_servers_checks(
    kube: Kube, admin: Cluster, kind: str, flavour: str
) -> None:
    words = ["--on", f"k8s:/{admin.namespace}", "--image", "example/any:1", "--operator", kind]
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

    made = {"apiVersion": "kubeflow.org/v9", "kind": "MPIJob", "metadata": {"name": "x"}}
    with pytest.raises(PrepareError, match="the cluster has no MPIJob"):
        try_out(admin, [made])
