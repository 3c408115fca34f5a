"""The fields that an MPIJob may have, by name and type, and what is wrong with those of a manifest.

Pure. The names are those of the API of Kubernetes up to 1.34, and of MPIJob v1 and v2beta1:
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ and
https://github.com/kubeflow/mpi-operator/tree/master/pkg/apis/kubeflow
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shanty.runtime.errors import UsageError
from shanty.runtime.suggestions import nearest

# A field is of a type, one of some texts (a tuple), a list ([x]), an object with known fields (a
# dict), or anything (object). OPEN: an object of Kubernetes, which may get more fields.
OPEN = "*"
_WORDS = [str]
_SELECTOR = {"name": str, "key": str, "optional": bool}
_ENV = {
    "name": str,
    "value": str,
    "valueFrom": {
        "fieldRef": {"apiVersion": str, "fieldPath": str},
        "resourceFieldRef": {"containerName": str, "resource": str, "divisor": object},
        "configMapKeyRef": _SELECTOR,
        "secretKeyRef": _SELECTOR,
        "fileKeyRef": object,
        OPEN: object,
    },
}
_SOURCE = {"name": str, "optional": bool}
_ENV_FROM = {"prefix": str, "configMapRef": _SOURCE, "secretRef": _SOURCE}
_RESOURCES = {"limits": {OPEN: object}, "requests": {OPEN: object}, "claims": [object]}
_MOUNT = {
    "name": str, "mountPath": str, "subPath": str, "subPathExpr": str, "readOnly": bool,
    "mountPropagation": str, "recursiveReadOnly": str, OPEN: object,
}  # fmt: skip


def _fields(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), object)


_CONTAINER: dict[str, Any] = {
    **_fields(
        "ports resizePolicy restartPolicy restartPolicyRules volumeDevices livenessProbe "
        "readinessProbe startupProbe lifecycle terminationMessagePath terminationMessagePolicy "
        "imagePullPolicy stdin stdinOnce tty"
    ),
    "name": str,
    "image": str,
    "command": _WORDS,
    "args": _WORDS,
    "workingDir": str,
    "env": [_ENV],
    "envFrom": [_ENV_FROM],
    "resources": _RESOURCES,
    "volumeMounts": [_MOUNT],
    "securityContext": {OPEN: object},
    OPEN: object,
}
_POD: dict[str, Any] = {
    **_fields(
        "ephemeralContainers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds "
        "dnsPolicy nodeSelector serviceAccountName serviceAccount automountServiceAccountToken "
        "nodeName hostNetwork hostPID hostIPC shareProcessNamespace hostname "
        "imagePullSecrets subdomain affinity schedulerName tolerations hostAliases priority "
        "priorityClassName dnsConfig readinessGates runtimeClassName enableServiceLinks overhead "
        "preemptionPolicy topologySpreadConstraints setHostnameAsFQDN os hostUsers "
        "schedulingGates resourceClaims resources hostnameOverride"
    ),
    "volumes": [object],
    "securityContext": {OPEN: object},
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    OPEN: object,
}
_META = {
    **_fields(
        "namespace uid resourceVersion generation creationTimestamp deletionTimestamp selfLink "
        "deletionGracePeriodSeconds ownerReferences finalizers managedFields clusterName"
    ),
    "name": str,
    "generateName": str,
    "labels": {OPEN: str},
    "annotations": {OPEN: str},
}
_REPLICA = {
    "replicas": int,
    "restartPolicy": ("Never", "OnFailure", "Always", "ExitCode"),
    "template": {"metadata": _META, "spec": _POD},
}
_CLEAN = ("None", "Running", "All")
_RUN_POLICY = {
    "cleanPodPolicy": _CLEAN,
    "ttlSecondsAfterFinished": int,
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "schedulingPolicy": {
        "minAvailable": int,
        "queue": str,
        "minResources": {OPEN: object},
        "priorityClass": str,
        "scheduleTimeoutSeconds": int,
    },
    "suspend": bool,
    "managedBy": str,
}
_SPEC = {
    "slotsPerWorker": int,
    "runPolicy": _RUN_POLICY,
    "mpiReplicaSpecs": {"Launcher": _REPLICA, "Worker": _REPLICA},
}
_OF_VERSIONS = {
    "kubeflow.org/v1": {"cleanPodPolicy": _CLEAN, "mainContainer": str},
    "kubeflow.org/v2beta1": {
        "sshAuthMountPath": str,
        "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
        "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "runLauncherAsWorker": bool,
    },
}
VERSIONS = tuple(_OF_VERSIONS)
_KINDS = {int: "a whole number", bool: "true or false", str: "a text", dict: "an object"}
_NEAR = 0.8


def check(job: Mapping[str, Any]) -> None:
    """Raise UsageError, with the path, for what an MPIJob of its version cannot have.

    A field of a pod or container that resembles no known field may be one of a newer Kubernetes,
    whose API server checks it.
    """
    spec = {**_SPEC, **_OF_VERSIONS[job["apiVersion"]]}
    known = {"apiVersion": str, "kind": str, "metadata": _META, "spec": spec, "status": object}
    _check(job, known, "")


def _check(value: Any, known: Any, path: str) -> None:
    if value is None or known is object:
        return
    if isinstance(known, tuple):
        _need(isinstance(value, str), path, value, "a text")
        if value not in known:
            raise UsageError(
                f"invalid {path}: {value!r}", _did_you_mean(value, known), f"use {_or(known)}"
            )
    elif isinstance(known, list):
        _need(isinstance(value, list), path, value, "a list")
        for number, one in enumerate(value):
            where = f"{path}[{number}]"
            _need(one is not None, where, one, "a text" if known[0] is str else "an object")
            _check(one, known[0], where)
    elif isinstance(known, dict):
        _need(isinstance(value, dict), path, value, "an object")
        for key, one in value.items():
            where = f"{path}.{key}" if path else str(key)
            if key in known:
                _check(one, known[key], where)
            elif set(known) == {OPEN}:
                _check(one, known[OPEN], where)
            else:
                _unknown(where, str(key), known)
    else:
        right = isinstance(value, known) and (known is bool or not isinstance(value, bool))
        _need(right, path, value, _KINDS[known])
        if known is int and value < 0:
            raise UsageError(f"invalid {path}: {value}", "it is negative")
        if known is str and "\0" in value:
            raise UsageError(f"invalid {path}", "it has a NUL byte")


def _unknown(path: str, key: str, known: Mapping[str, Any]) -> None:
    hint = _did_you_mean(key, known)
    if hint or OPEN not in known:
        raise UsageError(f"unknown field {path}", hint or f"known are {', '.join(sorted(known))}")


def _did_you_mean(word: str, known: Any) -> str:
    return nearest(word, [name for name in known if name != OPEN], cutoff=_NEAR)


def _need(right: bool, path: str, value: Any, kind: str) -> None:
    if not right:
        shown = repr(value) if len(repr(value)) < 80 else f"a {type(value).__name__}"
        quotes = 'write it in quotes, as "1"' if kind == "a text" else ""
        raise UsageError(f"invalid {path or 'MPIJob'}: {shown} is not {kind}", fix=quotes)


def _or(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
