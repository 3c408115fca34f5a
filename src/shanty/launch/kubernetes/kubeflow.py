"""The objects of Kubeflow's operators for a job: `--operator mpijob` or `trainjob`.

Pure. The host file is named on the line, and what a flavour needs beside the operator's own
settings is set (`Flavour.in_operator`), so one object is right for Open MPI 4 and 5. The image has
to have the MPI, sshd and the packages; the workspace comes by a ConfigMap.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from shanty.launch.kubernetes import objects
from shanty.launch.kubernetes.options import KubernetesOptions
from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.spec import JobSpec, Program, Raw

Object = dict[str, Any]

MPIJOB, TRAINJOB = "mpijob", "trainjob"
_HOSTFILE = "/etc/mpi/hostfile"  # where the operators put it
_WORKSPACE = "/shanty/workspace"
_MOST = 900 << 10  # bytes of a ConfigMap, which may have 1 MiB with all that is around


def made_of(
    kind: str, job: JobSpec, run: str, flavour: str, files: Mapping[str, bytes]
) -> list[Object]:
    """The objects of a job, the ConfigMap of its workspace first; `files` are by relative path."""
    for name in ("uid", "k8s_patch"):
        if name in job.options:
            raise UsageError(
                f"--{name.replace('_', '-')} is not for --operator {kind}",
                "the operator's pods are as their image has them",
                "change what --dry-run -o yaml prints, or leave out --operator",
            )
    for name in ("elastic", "warm"):
        if getattr(job, name):
            raise UsageError(
                f"--{name} is not for --operator {kind}",
                "the operator starts the launcher and its ranks, not shanty",
                f"leave out --operator, or --{name}",
            )
    its = FLAVOURS[flavour]
    config, items = _workspace(run, files)
    worker, launcher = _pod(job, run, items), _pod(job, run, items)
    worker["containers"][0] |= {
        "name": "worker",
        "env": _variables(job.env),
        "resources": objects.resources_of(job),
    }
    launcher["containers"][0] |= {
        "name": "launcher",
        "command": _line(job, its),
        "env": _variables({**dict(its.in_operator), **job.env}),
    }
    pods = {"launcher": launcher, "worker": worker}
    make = _mpijob if kind == MPIJOB else _trainjob
    return [config, *make(job, run, its.kubeflow, pods)]


def _mpijob(
    job: JobSpec, run: str, implementation: str, pods: Mapping[str, Object]
) -> list[Object]:
    own = KubernetesOptions.of(job)
    policy: Object = {
        "cleanPodPolicy": "None" if own.keep else "Running",
        "backoffLimit": job.retries,
    }
    if job.time_limit is not None:
        policy["activeDeadlineSeconds"] = int(job.time_limit)
    asked = {"queue": own.queue, "priorityClass": own.priority_class}
    scheduling = {key: value for key, value in asked.items() if value}
    if scheduling:
        policy["schedulingPolicy"] = scheduling
    spec = {
        "slotsPerWorker": objects.slots_of(job),
        "mpiImplementation": implementation,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": policy,
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1, "restartPolicy": "Never",
                "template": _template(job, run, pods["launcher"]),
            },
            "Worker": {
                "replicas": objects.pods_of(job), "restartPolicy": "Never",
                "template": _template(job, run, pods["worker"]),
            },
        },
    }  # fmt: skip
    return [_object("kubeflow.org/v2beta1", "MPIJob", job, run, spec)]


def _trainjob(
    job: JobSpec, run: str, implementation: str, pods: Mapping[str, Object]
) -> list[Object]:
    """A TrainJob, and the TrainingRuntime that it refers to: Trainer comes with none that fits
    every MPI program."""
    name, slots = objects.name_of(run), objects.slots_of(job)
    jobs = [
        {"name": role, "template": {"spec": {"template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": pods[which],
        }}}}
        for role, which in (("launcher", "launcher"), ("node", "worker"))
    ]  # fmt: skip
    runtime = {
        "mlPolicy": {
            "numNodes": objects.pods_of(job),
            "mpi": {"numProcPerNode": slots, "mpiImplementation": implementation},
        },
        "template": {"spec": {"replicatedJobs": jobs}},
    }
    launcher = pods["launcher"]["containers"][0]
    train = {
        "runtimeRef": {"name": name, "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org"},
        "trainer": {
            "image": job.image,
            "command": launcher["command"],
            "numNodes": objects.pods_of(job),
            "numProcPerNode": slots,
            "env": launcher["env"],
            "resourcesPerNode": objects.resources_of(job),
        },
    }
    queue = KubernetesOptions.of(job).queue
    if queue:
        train["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    version = "trainer.kubeflow.org/v1alpha1"
    return [
        _object(version, "TrainingRuntime", job, run, runtime),
        _object(version, "TrainJob", job, run, train),
    ]


def _object(version: str, kind: str, job: JobSpec, run: str, spec: Object) -> Object:
    own = KubernetesOptions.of(job)
    labels = dict(objects.pair("--label", text) for text in own.labels)
    labels |= {objects.LABEL: run, objects.MANAGED: "shanty"}
    if own.queue and kind == "MPIJob":
        labels["kueue.x-k8s.io/queue-name"] = own.queue
    metadata = {"name": objects.name_of(run), "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _template(job: JobSpec, run: str, pod: Object) -> Object:
    labels = KubernetesOptions.of(job).labels
    own = dict(objects.pair("--label", text) for text in labels)
    return {"metadata": {"labels": {**own, objects.LABEL: run}}, "spec": pod}


def _pod(job: JobSpec, run: str, items: list[Object]) -> Object:
    """What launcher and workers have in common; the operator sets the workers' command (sshd)."""
    plain = objects.pod_of(job, run)
    own = (objects.SHM, "shanty-mount-")  # the rest is what our own pods need
    mounts = [one for one in plain["containers"][0]["volumeMounts"] if one["name"].startswith(own)]
    mounts.append({"name": "workspace", "mountPath": _WORKSPACE})
    volumes = [one for one in plain["volumes"] if one["name"].startswith(own)]
    volumes.append(
        {"name": "workspace", "configMap": {"name": objects.name_of(run), "items": items}}
    )
    kept = ("nodeSelector", "tolerations", "serviceAccountName", "imagePullSecrets",
            "priorityClassName")  # fmt: skip
    container = {"image": job.image, "workingDir": _WORKSPACE, "volumeMounts": mounts}
    found = {key: plain[key] for key in kept if key in plain}
    return {**found, "containers": [container], "volumes": volumes}


def _variables(values: Mapping[str, str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _line(job: JobSpec, flavour: Flavour) -> list[str]:
    """The launcher's command line in its pod."""
    command = job.command
    if isinstance(command, Raw):
        return ["sh", "-c", *command.argv] if command.shell else list(command.argv)
    python = () if isinstance(command, Program) else ("python3",)
    program = (*flavour.exporting(list(job.env)), *python, *job.words())
    mpi = Installation(flavour.name, "", "", "mpirun", "", "")  # that of the image, on its PATH
    layout = Layout((), job.ranks or 1, None, None, False, 1, _HOSTFILE)
    return flavour.command(mpi, layout, program)


def _workspace(run: str, files: Mapping[str, bytes]) -> tuple[Object, list[Object]]:
    """The ConfigMap with the workspace, and the path of each of its keys."""
    keys = {f"f{number}": path for number, path in enumerate(sorted(files))}
    data = {key: base64.b64encode(files[path]).decode() for key, path in keys.items()}
    items = [{"key": key, "path": str(PurePosixPath(path))} for key, path in keys.items()]
    metadata = {"name": objects.name_of(run), "labels": {objects.LABEL: run}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}
    return config, items


def files_of(folder: Path, names: list[str]) -> dict[str, bytes]:
    """The content of a workspace's files, by their relative paths; broken links and everything
    else that is not a file are left out. UsageError where a ConfigMap cannot hold it.
    """
    files = [name for name in names if (folder / name).is_file()]
    size = sum((folder / name).stat().st_size for name in files)
    if size > _MOST:
        raise UsageError(
            f"the workspace has {size / 1e6:.1f} MB, and a ConfigMap takes {_MOST / 1e6:.1f} MB",
            "the operator's pods get their code by one",
            "put it into the image, leave out what is not code (.shantyignore), or run without "
            "--operator: shanty's own pods get any workspace",
        )
    return {name: (folder / name).read_bytes() for name in files}
