"""Reads an MPIJob of Kubeflow (v1, v2beta1) as a job for any target.

Pure. Each field is honoured, or named in a notice, or refused (`mpijob_fields`). A cluster gets the
worker's pods as the manifest has them; the launcher has no pod of its own. What only the operator
needs (keys, sshd, its host file) is not used.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.kubernetes.mpijob_fields import VERSIONS, check
from shanty.launch.kubernetes.objects import GPU, documents_of
from shanty.launch.kubernetes.pod_exec import CONTAINER
from shanty.launch.kubernetes.shortfall import quantity
from shanty.launch.kubernetes.variables import IDENTIFIER, Variables
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.resolve import LAUNCHERS
from shanty.runtime.spec import Raw

Object = Mapping[str, Any]

_REPLICAS = "spec.mpiReplicaSpecs"
_QUEUE = "kueue.x-k8s.io/queue-name"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DEFAULT = "kubectl.kubernetes.io/default-container"
# Flyte's program ends with 0 where a task fails, since its backend reads an error file.
_FLYTE = "pyflyte-execute"
_FLYTES_FETCHER = "pyflyte-fast-execute"  # gets the code, and starts the launcher's line
# Fields of the worker's container that are read one by one, and those for its own command.
_READ = ("name", "image", "command", "args", "env", "envFrom", "workingDir", "resources")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_NOT_OF_PODS = ("containers", "restartPolicy", "hostname", "subdomain")
_REMOVED = "objects are removed when the run has ended, unless --keep is given"
# What has the effect that a field of that name asks for.
_ANYWHERE = {
    "backoffLimit": "--retries N starts again where a host was lost, not where the command failed",
    "restartPolicy": "--retries N starts again where a host was lost",
    "ttlSecondsAfterFinished": _REMOVED,
    "cleanPodPolicy": _REMOVED,
    "suspend": "the run starts at once",
    "minAvailable": "ranks start when all hosts are there",
    "minResources": "ranks start when all hosts are there",
    "serviceAccountName": "--service-account",
    "env": "-e NAME=VALUE",
    "envFrom": "-e NAME=VALUE",
}
_ON_CLUSTER = {
    "volumes": "the worker's are mounted",
    "initContainers": "the worker's are run",
    "resources": "ranks are in the workers' pods only",
}
_ELSEWHERE = {
    "volumes": "--mount SOURCE:TARGET",
    "volumeMounts": "--mount SOURCE:TARGET",
    "nodeSelector": "--on HOSTS",
    "affinity": "--on HOSTS",
    "nodeName": "--on HOSTS",
    "tolerations": "--on HOSTS",
    "cpu": "-c N is the number of cores of each rank",
    "imagePullSecrets": "--registry-user",
    "queue": "a queue is for --on k8s",
    "priorityClass": "a priority class is for --on k8s",
    "scheduleTimeoutSeconds": "--start-timeout",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an MPIJob asks for: fields of JobSpec in `given`, notes, and fields without effect.

    `command` is None where the image's entry point has it. `ignored` has the path of each field
    without effect, and what has the same effect, or "". `namespace` is that of the object.
    """

    command: Raw | None
    given: dict[str, Any]
    notes: tuple[str, ...]
    ignored: dict[str, str]
    namespace: str = ""

    def notice(self) -> str:
        """The fields without effect, for a person; "" where all are honoured."""
        lines = [f"{path}: {more}" if more else path for path, more in self.ignored.items()]
        return "\n    ".join(["these fields have no effect:", *lines]) if lines else ""


def read(
    path: Path,
    *,
    cluster: bool = False,
    env: Mapping[str, str] | None = None,
    usual: Mapping[str, str] | None = None,
) -> Manifest:
    """Read the MPIJob in a file; UsageError where the file has none, or several.

    `cluster` is true for a run on Kubernetes. `env` has variables that replace those of the
    manifest, `usual` the values of variables whose values only the cluster knows.
    """
    if not path.exists():
        raise NotFoundError(f"file {path} not found")
    objects: list[Any] = []
    for one in documents_of(path, "manifest"):
        is_list = isinstance(one, dict) and str(one.get("kind", "")).endswith("List")
        items = one.get("items") if is_list else [one]
        objects += items if isinstance(items, list) else [one]
    objects = [one for one in objects if isinstance(one, dict)]
    jobs = [one for one in objects if one.get("kind") == "MPIJob"]
    if len(jobs) != 1:
        kinds = ", ".join(str(one.get("kind")) for one in objects)
        raise UsageError(
            f"{path} has {len(jobs) or 'no'} MPIJob{'s' if len(jobs) > 1 else ''}",
            f"it has {kinds}" if kinds else "it has no object of Kubernetes",
            "--manifest takes a file with one MPIJob (kubeflow.org/v1 or v2beta1)",
        )
    try:
        found = manifest_of(jobs[0], cluster=cluster, env=env or {}, usual=usual or {})
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", error.why, error.fix) from error
    for one in objects:
        if one is not jobs[0]:
            metadata = one.get("metadata")
            name = metadata.get("name", "") if isinstance(metadata, dict) else ""
            found.ignored[f"{one.get('kind')} {name}"] = "it is not created: kubectl apply does so"
    return found


def manifest_of(
    job: Object, *, cluster: bool, env: Mapping[str, str], usual: Mapping[str, str]
) -> Manifest:
    """What an MPIJob asks for; UsageError with the path of an invalid field."""
    if job.get("apiVersion") not in VERSIONS:
        raise UsageError(
            f"an MPIJob of version {job.get('apiVersion')} is not known",
            fix=f"known are {', '.join(VERSIONS)}",
        )
    check(job)
    spec, notes = job.get("spec") or {}, []
    replicas = spec.get("mpiReplicaSpecs") or {}
    main_name = spec.get("mainContainer") or ""
    launcher = _Pod.of(replicas, "Launcher", main_name)
    own = _Pod.of(replicas, "Worker", main_name) if _count(replicas.get("Worker")) else None
    worker = own or launcher
    if _count(replicas["Launcher"]) != 1:
        raise UsageError(f"{_REPLICAS}.Launcher.replicas has to be 1")
    workers = _count(replicas["Worker"]) if own else 1
    slots = 1 if spec.get("slotsPerWorker") is None else spec["slotsPerWorker"]
    if slots < 1:
        raise UsageError(f"invalid spec.slotsPerWorker: {slots}", "a worker has one at least")
    if spec.get("runLauncherAsWorker") and own:
        workers += 1
        notes.append("the launcher counts as a worker, and is as the others are")
    if not worker.main.get("image"):
        raise UsageError(f"{worker.main_path}.image is missing")
    image, other = worker.main["image"], launcher.main.get("image")
    if other != image:
        notes.append(f"the launcher runs in the workers' image {image}, not in {other}")
    its = Variables.of(worker.main, worker.main_path, env, usual)
    of_line = Variables.of(launcher.main, launcher.main_path, env, usual)
    policy = spec.get("runPolicy") or {}
    metadata = job.get("metadata") or {}
    ignored = _Ignored(cluster)
    ignored.of_job(job)
    ignored.of_pods(worker, launcher)
    plain, kept = _union(its, of_line, cluster, worker.main_path, ignored)
    given: dict[str, Any] = {
        "name": metadata.get("name") or (metadata.get("generateName") or "mpijob").rstrip("-"),
        "image": image,
        "ranks": workers * slots,
        "nodes": workers,
        "ranks_per_host": slots,
        "env": plain,
        "mpi": "image",
        "k8s_patch": json.dumps(_patch(job, worker, launcher, kept)),
        **_resources(worker, slots),
    }
    if policy.get("activeDeadlineSeconds") == 0:
        what = "invalid spec.runPolicy.activeDeadlineSeconds: 0"
        raise UsageError(
            what, "it leaves the run no time", "leave it out for a run without a limit"
        )
    if policy.get("activeDeadlineSeconds"):
        given["time_limit"] = float(policy["activeDeadlineSeconds"])
    scheduling = policy.get("schedulingPolicy") or {}
    queue = scheduling.get("queue") or (metadata.get("labels") or {}).get(_QUEUE)
    if queue:
        given["queue"] = queue
    if scheduling.get("priorityClass"):
        given["priority_class"] = scheduling["priorityClass"]
    if (scheduling.get("scheduleTimeoutSeconds") or 0) > 0:
        given["schedule_timeout"] = float(scheduling["scheduleTimeoutSeconds"])
    command = _command(launcher, of_line, cluster, notes)
    if command is not None and any(_FLYTE in word for word in command.argv):
        given["env"].setdefault("FLYTE_FAIL_ON_ERROR", "true")
    namespace = str(metadata.get("namespace") or "")
    return Manifest(command, given, tuple(dict.fromkeys(notes)), ignored.paths, namespace)


def _count(replica: Object | None) -> int:
    if replica is None:
        return 0
    return 1 if replica.get("replicas") is None else int(replica["replicas"])


@dataclass(frozen=True)
class _Pod:
    """The template of a role's pods, its main container, and their paths in the manifest."""

    template: Object
    path: str
    main: Object
    main_path: str
    names: Mapping[str, str]  # of containers, and what they are called in a run's pods

    @classmethod
    def of(cls, replicas: Object, role: str, name: str) -> _Pod:
        path = f"{_REPLICAS}.{role}.template"
        template = (replicas.get(role) or {}).get("template") or {}
        containers = (template.get("spec") or {}).get("containers")
        if not containers:
            raise UsageError(f"{path}.spec.containers is missing")
        called = [one.get("name") for one in containers]
        number = called.index(name) if name in called else 0
        names = {CONTAINER: f"{CONTAINER}-own", called[number]: CONTAINER}
        template = {**template, "spec": _renamed(template["spec"], names)}
        main = template["spec"]["containers"][number]
        return cls(template, path, main, f"{path}.spec.containers[{number}]", names)

    @property
    def spec(self) -> Object:
        found: Object = self.template["spec"]
        return found

    @property
    def others(self) -> list[Object]:
        return [one for one in self.spec["containers"] if one is not self.main]

    @property
    def runs_sshd(self) -> bool:
        words = [*(self.main.get("command") or ()), *(self.main.get("args") or ())]
        return not words or Path(words[0]).name == "sshd"


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A part of a pod whose references to containers are to their names in a run's pods."""
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: names.get(one, one) if key == "containerName" and isinstance(one, str)
        else _renamed(one, names)
        for key, one in value.items()
    }  # fmt: skip


def _mark(key: str, value: str, names: Mapping[str, str]) -> tuple[str, str]:
    """An annotation of a pod, which may have the name of a container in its key or value."""
    kind, slash, name = key.partition("/")
    if kind.startswith("container."):
        key = f"{kind}{slash}{names.get(name, name)}"
    return key, names.get(value, value) if key == _DEFAULT else value


class _Ignored:
    """The fields without effect, by their paths, each with the option for it."""

    def __init__(self, cluster: bool) -> None:
        self.paths: dict[str, str] = {}
        self._cluster = cluster
        self._hints = {**_ANYWHERE, **(_ON_CLUSTER if cluster else _ELSEWHERE)}

    def add(self, path: str, key: str) -> None:
        self.paths[path] = self._hints.get(key, "")

    def rest(
        self, fields: Object, path: str, honoured: Collection[str] = (), same: Object | None = None
    ) -> None:
        """All fields that have a value, but for those of `honoured` and those `same` has, too."""
        for key, value in fields.items():
            unset = value in (None, "", [], {}) or value is False
            if not unset and key not in honoured and (same or {}).get(key) != value:
                self.add(f"{path}.{key}", key)

    def of_job(self, job: Object) -> None:
        """Add the fields outside of the templates."""
        spec, policy = job["spec"], job["spec"].get("runPolicy") or {}
        for path, its in (("spec", spec), ("spec.runPolicy", policy)):
            if its.get("cleanPodPolicy") == "None":
                self.add(f"{path}.cleanPodPolicy", "cleanPodPolicy")
        for key in ("ttlSecondsAfterFinished", "backoffLimit", "suspend"):
            if policy.get(key):
                self.add(f"spec.runPolicy.{key}", key)
        if policy.get("managedBy") not in (None, "kubeflow.org/mpi-operator"):
            self.add("spec.runPolicy.managedBy", "managedBy")
        on_cluster = ("queue", "priorityClass", "scheduleTimeoutSeconds")
        scheduling = policy.get("schedulingPolicy") or {}
        honoured = on_cluster if self._cluster else ()
        self.rest(scheduling, "spec.runPolicy.schedulingPolicy", honoured)
        for role, replica in spec["mpiReplicaSpecs"].items():
            if replica and replica.get("restartPolicy") not in (None, "Never"):
                self.add(f"{_REPLICAS}.{role}.restartPolicy", "restartPolicy")
        if not self._cluster:
            self.rest(_described(job), "metadata")
            if (job.get("metadata") or {}).get("namespace"):
                self.add("metadata.namespace", "namespace")

    def of_pods(self, worker: _Pod, launcher: _Pod) -> None:
        """Add the fields of the templates; a field of both is named once."""
        pod = {"containers"}
        read = {"name", "image", "env", "envFrom", "resources"}
        if self._cluster:
            pod |= set(worker.spec).difference(_NOT_OF_PODS)
            read |= set(worker.main).difference(("command", "args", "workingDir", *_PROBES))
        if worker.spec.get("restartPolicy") == "Never":
            pod.add("restartPolicy")
        if worker is launcher or worker.runs_sshd:
            read |= {"command", "args"}
        same: Object = {"workingDir": launcher.main.get("workingDir")}
        self.rest(worker.spec, f"{worker.path}.spec", pod)
        self.rest(worker.main, worker.main_path, read, same)
        if not self._cluster:
            self.rest(_described(worker.template), f"{worker.path}.metadata")
            self._others(worker)
            asked = worker.main.get("resources") or {}
            for kind in ("limits", "requests"):
                path = f"{worker.main_path}.resources.{kind}"
                same = asked.get("limits") or {} if kind == "requests" else {}
                self.rest(asked.get(kind) or {}, path, ("memory", GPU), same)
        if worker is not launcher:
            self.rest(_described(launcher.template), f"{launcher.path}.metadata")
            never = ("restartPolicy",) if launcher.spec.get("restartPolicy") == "Never" else ()
            self.rest(launcher.spec, f"{launcher.path}.spec", ("containers", *never), worker.spec)
            read = {*_READ} - {"resources"}
            self.rest(launcher.main, launcher.main_path, read, worker.main)
            self._others(launcher)

    def _others(self, pod: _Pod) -> None:
        for one in pod.others:
            self.add(f"{pod.path}.spec.containers (the container {one.get('name')})", "containers")


# The fields of a patch that an option replaces, in the pod and in the container.
_OF_OPTIONS = {
    "service_account": ("serviceAccountName", "serviceAccount"),
    "priority_class": ("priorityClassName",),
    "node_selector": ("nodeSelector",),
    "tolerations": ("tolerations",),
    "pull_secrets": ("imagePullSecrets",),
}
_OF_RESOURCES = {"cpus_per_rank": "cpu", "memory_per_rank": "memory", "gpus_per_rank": GPU}


def without(patch: str, options: Collection[str]) -> str:
    """The patch of a manifest without what `options`, fields of JobSpec, replace."""
    found = json.loads(patch)
    pod = found["spec"]["template"]["spec"]
    for option in options:
        for key in _OF_OPTIONS.get(option, ()):
            pod.pop(key, None)
    main = next(one for one in pod["containers"] if one["name"] == CONTAINER)
    for kind in main["resources"].values():
        for option in options:
            kind.pop(_OF_RESOURCES.get(option, ""), None)
    for one in (pod, main) if "uid" in options else ():
        (one.get("securityContext") or {}).pop("runAsUser", None)
    return json.dumps(found)


def _described(one: Object) -> dict[str, Any]:
    """The labels and annotations that somebody has given to a job, or to pods."""
    metadata = one.get("metadata") or {}
    found = {key: dict(metadata.get(key) or {}) for key in ("labels", "annotations")}
    found["annotations"].pop(_APPLIED, None)
    return {key: value for key, value in found.items() if value}


def _union(
    worker: Variables, launcher: Variables, cluster: bool, path: str, ignored: _Ignored
) -> tuple[dict[str, str], list[Object]]:
    """The variables of the ranks: those of the workers, then those of the launcher.

    Variables whose values only the cluster knows are kept for a container there, else named.
    """
    plain: dict[str, str] = {}
    kept: dict[str, Object] = {}
    lacking: dict[str, str] = {}
    for one in (worker, launcher):
        for name in (*one.plain, *one.kept):
            for known in (plain, kept, lacking):
                known.pop(name, None)
        plain |= one.plain
        # A manifest cannot set what shanty sets. The shell of pods loses names as `log.level`.
        own = [name for name in one.kept if name == "HOME" or name.startswith("SHANTY_")]
        own += [name for name in one.kept if not IDENTIFIER.fullmatch(name)]
        unset = one.lacking if not cluster else {name: one.lacking[name] for name in own}
        kept |= {name: entry for name, entry in one.kept.items() if name not in unset}
        lacking |= {name: why for name, why in unset.items() if name not in one.given}
    for name, why in lacking.items():
        ignored.paths[f"the variable {name}"] = f"{why}; -e {name}=VALUE sets it"
    if not cluster and (worker.open or launcher.open):
        ignored.add(f"{path}.envFrom", "envFrom")
    return plain, list(kept.values())


def _command(pod: _Pod, variables: Variables, cluster: bool, notes: list[str]) -> Raw | None:
    words = [*(pod.main.get("command") or ()), *(pod.main.get("args") or ())]
    if not pod.main.get("command"):
        if not words or Path(words[0]).name not in (*LAUNCHERS, _FLYTES_FETCHER):
            return None
        notes.append("its launcher has arguments alone: they are run, not the image's entry point")
    awaited = variables.awaited(words)
    if awaited and not cluster:
        raise UsageError(
            f"the launcher's command refers to {', '.join(awaited)}, which the cluster sets",
            "; ".join(variables.lacking.get(name, "") for name in awaited).strip("; "),
            " ".join(f"-e {name}=VALUE" for name in awaited),
        )
    line = variables.in_shell(words)
    if pod.main.get("workingDir"):
        return Raw((f"cd {shlex.quote(pod.main['workingDir'])} && {line}",), True)
    return Raw((line,), True) if awaited else Raw(tuple(variables.in_words(words)))


def _resources(pod: _Pod, slots: int) -> dict[str, Any]:
    """What each rank needs, for targets other than a cluster."""
    resources = pod.main.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    found: dict[str, Any] = {}
    for name, key in (("memory", "memory_per_rank"), (GPU, "gpus_per_rank")):
        if asked.get(name) is not None:
            try:
                amount = quantity(asked[name])
                if amount < 0:
                    raise ValueError("it is negative")
                found[key] = int(amount / slots)
            except (ValueError, ArithmeticError) as error:
                raise UsageError(
                    f"invalid {pod.main_path}.resources: {name} is {asked[name]!r}",
                    "it is not a quantity, as 2, 500m or 1.5Gi",
                ) from error
    return found


def _patch(job: Object, worker: _Pod, launcher: _Pod, kept: list[Object]) -> dict[str, Any]:
    """What a worker's pods have beyond that, as a patch of a run's Job."""
    resources = worker.main.get("resources") or {}
    limits = dict(resources.get("limits") or {})
    requests = {**limits, **(resources.get("requests") or {})}
    its = {k: v for k, v in worker.main.items() if k not in (*_READ, *_PROBES)}
    its |= {"name": CONTAINER, "resources": {"requests": {"cpu": None, **requests}}}
    if limits:
        its["resources"]["limits"] = limits
    if (its.get("securityContext") or {}).get("privileged"):
        its["securityContext"] = {"allowPrivilegeEscalation": None, **its["securityContext"]}
    if kept:
        its["env"] = kept
    sources = [one for pod in (worker, launcher) for one in pod.main.get("envFrom") or ()]
    if sources:
        its["envFrom"] = [one for n, one in enumerate(sources) if one not in sources[:n]]
    # The default of Kubernetes, which is not that of a run's Job.
    spec: dict[str, Any] = {"enableServiceLinks": True}
    if worker.spec.get("serviceAccountName") or worker.spec.get("serviceAccount"):
        spec["automountServiceAccountToken"] = True
    spec |= {key: value for key, value in worker.spec.items() if key not in _NOT_OF_PODS}
    taken = [
        {**one, "name": worker.names.get(str(one.get("name")), one.get("name"))}
        for one in worker.others
    ]
    pod: dict[str, Any] = {"spec": {**spec, "containers": [its, *taken]}}
    of_pods, of_job = _described(worker.template), _described(job)
    if of_pods:
        pod["metadata"] = of_pods
        if "annotations" in of_pods:
            marks = of_pods["annotations"].items()
            of_pods["annotations"] = dict(_mark(key, one, worker.names) for key, one in marks)
    return {"spec": {"template": pod}, **({"metadata": of_job} if of_job else {})}
