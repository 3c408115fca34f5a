"""The objects of a run: a Job that owns its pods, and a ConfigMap and a Secret that it owns.

Pure. Every cluster from 1.20 on knows these kinds and their fields. A patch (`merged`: a JSON merge
patch, RFC 7396, of the Job) may add anything else.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from shanty.launch.kubernetes.cluster import lacks_client
from shanty.launch.kubernetes.options import KubernetesOptions
from shanty.launch.kubernetes.pod_exec import CONTAINER
from shanty.runtime import kubernetes
from shanty.runtime.errors import UsageError
from shanty.runtime.kubernetes import pod
from shanty.runtime.spec import JobSpec

Object = dict[str, Any]

LABEL = "shanty.run/id"  # on every object of a run; its value is the run's id
MANAGED = "app.kubernetes.io/managed-by"  # "shanty", on all that it makes
BATCH = "apis/batch/v1"
HOME, USER_HOME, START = "/shanty", "/shanty/user", "/etc/shanty"
SHM, START_VOLUME = "shanty-shm", "shanty-start"
_PLACES = {"shanty-home": HOME, "shanty-tmp": "/tmp", SHM: "/dev/shm", START_VOLUME: START}
_PASSWD = "/etc/passwd"
GPU = "nvidia.com/gpu"
# Seconds beyond a run's time limit after which the cluster ends it itself: its files may wait.
_LATE = int(pod.KEEP) + 600
_KEPT = 3600  # seconds after its end for which a Job stays, where nobody removes it
_LARGEST = 4 << 20  # bytes of a file that is read
_VALUES = 100_000  # values in it: aliases may make more of it than there is
_GRACE = 15  # seconds that a pod has between SIGTERM and SIGKILL
_REPLACED = 6  # failed pods that the cluster may replace until the run is ended
# Becomes the first Python that is new enough.
_SCRIPT = (
    "for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python "
    "/usr/local/bin/python3 /opt/conda/bin/python3 /usr/bin/python3; do "
    'x=$(command -v "$p") || continue; '
    '"$x" -I -S -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null || continue; '
    f'mkdir -p "$HOME"; exec "$x" -I -S {START}/pod.py serve; done; '
    'echo "shanty: the image has no Python of version 3.9 or newer"; exit 127'
)
NO_PYTHON = 127  # the exit code of that


def name_of(run: str) -> str:
    """The name of a run's objects."""
    return f"shanty-{run}".lower().replace("_", "-")


def pods_of(job: JobSpec) -> int:
    """How many pods a job gets."""
    if job.nodes is not None:
        return job.nodes
    return -(-(job.ranks or 1) // (job.ranks_per_host or 1))


def slots_of(job: JobSpec) -> int:
    """How many ranks each pod has room for."""
    if job.ranks_per_host is not None:
        return job.ranks_per_host
    return -(-(job.ranks or 1) // pods_of(job))


def job_of(job: JobSpec, run: str) -> Object:
    """The Job of a run, patched as its user says."""
    made = _job_of(job, run)
    patch = KubernetesOptions.of(job).k8s_patch
    if not patch:
        return _with_name(made)
    patched = dict(merged(made, json.loads(patch)))
    try:
        return _with_name(_found_again(patched, made))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            "the patch leaves no Job that a run can be in", f"{type(error).__name__}: {error}",
            "see what --dry-run -o yaml prints without it",
        ) from error  # fmt: skip


def _found_again(patched: Object, made: Object) -> Object:
    """A patched Job with the name and labels by which a run finds the Job and its pods."""
    own = {key: made["metadata"]["labels"][key] for key in (LABEL, MANAGED)}
    template = patched["spec"]["template"]
    metadata, of_pods = ({**(one.get("metadata") or {})} for one in (patched, template))
    for one in (metadata, of_pods):
        one["labels"] = {**(one.get("labels") or {}), **own}
    metadata["name"] = made["metadata"]["name"]
    metadata.pop("generateName", None)
    containers = [one["name"] for one in template["spec"]["containers"]]
    if containers.count(CONTAINER) != 1:
        raise ValueError(f"there has to be one container {CONTAINER}")
    port_of(patched)
    spec = {**patched["spec"], "template": {**template, "metadata": of_pods}}
    return {**patched, "metadata": metadata, "spec": spec}


def _with_name(job: Object) -> Object:
    """A Job whose user id, if it gives one, has a name: ssh, git and Java fail without.

    As with docker, `/etc/passwd` then has root and this user only.
    """
    main = _main_of(job)
    mounts = main.get("volumeMounts") or []
    if _id_of(job, "runAsUser") and all(one["mountPath"] != _PASSWD for one in mounts):
        mount = {"name": START_VOLUME, "mountPath": _PASSWD, "subPath": "passwd"}
        main["volumeMounts"] = [*mounts, mount]
    return job


def _main_of(job: Object) -> Object:
    """The container of a Job that the run is in."""
    containers = job["spec"]["template"]["spec"]["containers"]
    return next(one for one in containers if one["name"] == CONTAINER)


def _id_of(job: Object, key: str) -> int:
    """The user or group id that a Job gives to the run's container; 0 where it gives none."""
    for one in _main_of(job), job["spec"]["template"]["spec"]:
        found = (one.get("securityContext") or {}).get(key)
        if found is not None:
            return int(found)
    return 0


def _job_of(job: JobSpec, run: str) -> Object:
    own = KubernetesOptions.of(job)
    labels = dict(pair("--label", text) for text in own.labels)
    if own.queue:
        labels["kueue.x-k8s.io/queue-name"] = own.queue
    labels |= {LABEL: run, MANAGED: "shanty"}
    count = pods_of(job)
    spec: Object = {
        "parallelism": count,
        "completions": count,
        "backoffLimit": _REPLACED,
        **({} if own.keep else {"ttlSecondsAfterFinished": _KEPT}),
        "template": {"metadata": {"labels": {**labels}}, "spec": pod_of(job, run)},
    }
    if job.time_limit is not None:
        spec["activeDeadlineSeconds"] = int(job.time_limit + own.schedule_timeout + _LATE)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name_of(run), "labels": labels},
        "spec": spec,
    }


def pod_of(job: JobSpec, run: str) -> Object:
    """The specification of each pod."""
    own = KubernetesOptions.of(job)
    start = {
        "name": START_VOLUME,
        "projected": {
            "sources": [
                {"configMap": {"name": name_of(run)}},
                {"secret": {"name": name_of(run)}},
            ]
        },
    }
    mounts: list[Object] = [{"name": name, "mountPath": path} for name, path in _PLACES.items()]
    volumes: list[Object] = [
        {"name": "shanty-home", "emptyDir": {}},
        {"name": "shanty-tmp", "emptyDir": {}},
        {"name": SHM, "emptyDir": {"medium": "Memory"}},  # a container has 64 MB of its own
        start,
    ]
    for number, (source, target, mode) in enumerate(job.mounts):
        claim = {"claimName": source.removeprefix("pvc:"), "readOnly": mode == "ro"}
        name = f"shanty-mount-{number}"
        volumes.append({"name": name, "persistentVolumeClaim": claim})
        mounts.append({"name": name, "mountPath": target, "readOnly": mode == "ro"})
    variables = {"HOME": USER_HOME, "SHANTY_HOME": f"{HOME}/shanty"}
    # The first of them waits for the last.
    variables[pod.IDLE_VARIABLE] = str(int(own.schedule_timeout + pod.IDLE))
    security: Object = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if own.uid is not None:
        security |= {"runAsUser": own.uid, "runAsNonRoot": own.uid != 0}
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": CONTAINER,
                "image": job.image,
                "command": ["sh", "-c", _SCRIPT],
                "env": [{"name": name, "value": value} for name, value in variables.items()],
                "resources": resources_of(job),
                "securityContext": security,
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    asked = {
        "securityContext": own.uid is not None and {"fsGroup": own.uid},
        "nodeSelector": dict(pair("--node-selector", text) for text in own.node_selector),
        "tolerations": [toleration(text) for text in own.tolerations],
        "serviceAccountName": own.service_account,
        "priorityClassName": own.priority_class,
        "imagePullSecrets": [{"name": name} for name in own.pull_secrets],
    }
    return spec | {key: value for key, value in asked.items() if value}


def resources_of(job: JobSpec) -> Object:
    """What a pod asks for: a core for each rank, unless the job says otherwise."""
    ranks = slots_of(job)
    requests: Object = {"cpu": str((job.cpus_per_rank or 1) * ranks)}
    limits: Object = {}
    if job.cpus_per_rank is not None:
        limits["cpu"] = requests["cpu"]
    if job.memory_per_rank is not None:
        requests["memory"] = limits["memory"] = str(job.memory_per_rank * ranks)
    if job.gpus_per_rank:
        requests[GPU] = limits[GPU] = str(job.gpus_per_rank * ranks)
    return {"requests": requests, **({"limits": limits} if limits else {})}


def owned_of(run: str, owner: Object) -> list[Object]:
    """The ConfigMap and the Secret of a run, which are deleted with their `owner`, the Job."""
    reference = {
        "apiVersion": "batch/v1", "kind": "Job", "controller": True,
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }  # fmt: skip
    metadata = {
        "name": name_of(run),
        "labels": {LABEL: run},
        "ownerReferences": [reference],
    }
    program = Path(kubernetes.__path__[0], "pod.py").read_text(encoding="utf-8")
    uid, gid = _id_of(owner, "runAsUser"), _id_of(owner, "runAsGroup")
    names = f"root:x:0:0:root:/root:/bin/sh\nuser{uid}:x:{uid}:{gid}::{USER_HOME}:/bin/sh\n"
    data = {"pod.py": program, **({"passwd": names} if uid else {})}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "data": data}
    key = {"apiVersion": "v1", "kind": "Secret", "stringData": {"key": secrets.token_hex(32)}}
    return [{**one, "metadata": metadata} for one in (config, key)]


def port_of(job: Object) -> int:
    """The port at which the pods of a Job serve; a patch may set another one."""
    containers = job["spec"]["template"]["spec"]["containers"]
    for one in containers:
        for variable in one.get("env", ()) if one["name"] == CONTAINER else ():
            if variable["name"] == pod.PORT_VARIABLE:
                return int(variable["value"])
    return pod.PORT


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch applied (RFC 7396); lists of named objects are merged by their names.

    So a patch may add something to the container `run`, and need not repeat the rest.
    """
    if isinstance(target, list) and isinstance(patch, list):
        key = next((key for key in ("mountPath", "name") if _have(key, [*target, *patch])), "")
        if key:
            found = {one[key]: one for one in target}
            for one in patch:
                found[one[key]] = merged(found.get(one[key], {}), one)
            return list(found.values())
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def dropped(patch: Any, answer: Any, path: str = "") -> list[str]:
    """The paths in a patch that the object in the server's answer lacks.

    Servers before 1.25 ignore unknown fields, also where they are asked to refuse them.
    """
    if patch in (None, "", [], {}) or patch is False or patch == 0:
        return []  # which answers leave out
    if isinstance(patch, dict):
        there = answer if isinstance(answer, dict) else {}
        keys = ((key, f"{path}.{key}" if path else str(key)) for key in patch)
        return [each for key, at in keys for each in dropped(patch[key], there.get(key), at)]
    if isinstance(patch, list):
        answer = answer if isinstance(answer, list) else []
        key = next((key for key in ("mountPath", "name") if _have(key, [*answer, *patch])), "")
        there = {one[key]: one for one in answer} if key else dict(enumerate(answer))
        pairs = ((n, there.get(one[key] if key else n), one) for n, one in enumerate(patch))
        return [e for n, its, one in pairs for e in dropped(one, its, f"{path}[{n}]")]
    return [path] if answer is None else []


def _have(key: str, values: list[Any]) -> bool:
    return all(isinstance(one, dict) and key in one for one in values)


def toleration(text: str) -> Object:
    """Read KEY[=VALUE][:EFFECT], as `kubectl taint` writes a taint; "*" tolerates all."""
    key, _, effect = text.partition(":")
    if effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise UsageError(
            f"--toleration {text}: unknown effect {effect}",
            fix="write KEY, KEY=VALUE, or KEY=VALUE:NoSchedule",
        )
    if not key.partition("=")[0]:
        raise UsageError(f"--toleration {text!r} names no taint", fix='"*" tolerates all')
    found: Object = {"effect": effect} if effect else {}
    if key == "*":
        return {"operator": "Exists", **found}
    name, equal, value = key.partition("=")
    if equal:
        return {"key": name, "operator": "Equal", "value": value, **found}
    return {"key": name, "operator": "Exists", **found}


def pair(option: str, text: str) -> tuple[str, str]:
    """Read KEY=VALUE; UsageError for anything else."""
    key, equal, value = text.partition("=")
    if not equal or not key:
        raise UsageError(f"invalid {option} {text}", fix=f"write {option} KEY=VALUE")
    return key, value


def read_patch(path: Path) -> str:
    """Read a patch of the Job, YAML or JSON, and return it as JSON; UsageError for other files."""
    documents = documents_of(path, "patch")
    found = documents[0] if len(documents) == 1 else None
    if not isinstance(found, dict) or not found.keys() <= {"metadata", "spec"}:
        raise UsageError(
            f"{path} is not a patch of a Job",
            "it has metadata or spec at its top, as in spec: {template: {spec: {…}}}",
            "see docs/how-to/kubernetes.md",
        )
    return json.dumps(found)


def documents_of(path: Path, kind: str) -> list[Any]:
    """The documents of a YAML file, in the types of JSON; UsageError where they have others."""
    try:
        import yaml
    except ImportError as error:
        raise lacks_client(error) from error

    class Loader(yaml.SafeLoader):
        """Reads the plain values of YAML; a date stays text, as with kubectl."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            """Read an object; ValueError for a key that comes twice."""
            keys = [one.value for one, _ in node.value if one.tag.endswith(":str")]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise ValueError(f"{twice} comes twice in line {node.start_mark.line + 1}")
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, text) for tag, text in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        size = path.stat().st_size if path.is_file() else -1
        if not 0 <= size <= _LARGEST:
            raise OSError("not a file" if size < 0 else f"it has more than {_LARGEST >> 20} MiB")
        found = [one for one in yaml.load_all(path.read_text(encoding="utf-8"), Loader) if one]
        _count(found, _VALUES)
        json.dumps(found, allow_nan=False)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, ValueError) as error:
        raise UsageError(f"the {kind} {path} cannot be read", str(error)) from error
    except RecursionError as error:
        raise UsageError(f"the {kind} {path} cannot be read", "it is nested too deep") from error
    return found


def _count(value: Any, left: int) -> int:
    """How many more values there may be; ValueError where there are too many."""
    if left <= 0:
        raise ValueError(f"it has more than {_VALUES} values")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        left = _count(one, left - 1)
    return left
