"""MPIJobs as the operator's examples are: a launcher and two workers with two slots each."""

from __future__ import annotations

import json
from pathlib import Path

PROGRAM = (
    "from mpi4py import MPI; w = MPI.COMM_WORLD; "
    "print('sum', w.allreduce(1), 'rank', w.rank, 'on', MPI.Get_processor_name(), flush=True)"
)
IMPLEMENTATIONS = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
_LINES = {
    "OpenMPI": ["-n", "4", "--allow-run-as-root", "-bind-to", "none"],
    "MPICH": ["-n", "4"],
    "Intel": ["-n", "4"],
}


def mpijob(
    implementation: str, image: str, *, version: str = "v2beta1", name: str = "hello"
) -> str:
    """The text of a manifest; `version` is v1 or v2beta1."""
    launcher = {
        "image": image, "imagePullPolicy": "IfNotPresent", "name": "launcher",
        "command": ["mpirun"], "args": [*_LINES[implementation], "python3", "-c", PROGRAM],
        "resources": {"limits": {"cpu": "1", "memory": "256Mi"}},
    }  # fmt: skip
    worker = {
        "image": image, "imagePullPolicy": "IfNotPresent", "name": "worker",
        "command": ["/usr/sbin/sshd"], "args": ["-De"],
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}},
    }  # fmt: skip
    if version == "v1":  # its workers are entered by exec
        del worker["command"], worker["args"]
    spec = {
        "slotsPerWorker": 2,
        "runPolicy": {"cleanPodPolicy": "Running"},
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
            "Worker": {"replicas": 2, "template": {"spec": {"containers": [worker]}}},
        },
    }
    if version != "v1":
        spec |= {"mpiImplementation": implementation, "sshAuthMountPath": "/root/.ssh"}
    metadata = {"name": name}
    made = {"apiVersion": f"kubeflow.org/{version}", "kind": "MPIJob", "metadata": metadata}
    return "# as people keep it\n---\n" + json.dumps({**made, "spec": spec}, indent=1)


def write(folder: Path, implementation: str, image: str, **more: str) -> Path:
    """A manifest as a file."""
    path = folder / "mpijob.yaml"
    path.write_text(mpijob(implementation, image, **more))
    return path


def hosts_of(text: str, ranks: int = 4) -> list[str]:
    """On which hosts the ranks of PROGRAM were, each in one world of all."""
    lines = [line.split() for line in text.splitlines() if "sum" in line.split()]
    assert sorted(int(one[one.index("rank") + 1]) for one in lines) == list(range(ranks)), text
    assert all(one[one.index("sum") + 1] == str(ranks) for one in lines)
    return sorted({one[-1] for one in lines})
