"""Makes objects in a cluster, and deletes them: those of a run, and any others."""

from __future__ import annotations

import time
from typing import Any

from shanty.launch.kubernetes import objects
from shanty.launch.kubernetes.cluster import ApiError, Cluster

Object = dict[str, Any]

_PLURALS = {
    "Job": "jobs", "ConfigMap": "configmaps", "Secret": "secrets", "MPIJob": "mpijobs",
    "TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes",
}  # fmt: skip
_CONFLICT, _GONE = 409, 404  # of HTTP
_TRIES, _PAUSE = 5, 0.5  # of a request that met another one (a quota's), and seconds between them


def path_of(cluster: Cluster, one: Object, *, named: bool = False) -> str:
    """The path of an object's kind in the namespace, or of the object itself."""
    group = f"apis/{one['apiVersion']}" if "/" in one["apiVersion"] else "api/v1"
    name = one["metadata"]["name"] if named else ""
    return cluster.path(_PLURALS[one["kind"]], name, group)


def create(cluster: Cluster, one: Object) -> Object:
    """Make an object; one that is there already is taken as it is: a request was repeated."""
    for left in reversed(range(_TRIES)):
        try:
            return cluster.call("POST", path_of(cluster, one), one)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                break
            if error.status != _CONFLICT or not left:
                raise
            time.sleep(_PAUSE)
    if one["kind"] in ("ConfigMap", "Secret"):  # which nobody needs to read
        return one
    return cluster.call("GET", path_of(cluster, one, named=True))


def make(cluster: Cluster, job: Object, run: str) -> None:
    """Make the Job of a run, and what it owns."""
    owner = create(cluster, job)
    for one in objects.owned_of(run, owner):
        create(cluster, one)


def delete(cluster: Cluster, path: str) -> None:
    """Delete an object and all that it owns; one that is gone is no error."""
    try:
        cluster.call("DELETE", path, {"propagationPolicy": "Background"})
    except ApiError as error:
        if error.status != _GONE:
            raise


def job_path(cluster: Cluster, run: str) -> str:
    """The path of a run's Job."""
    return cluster.path("jobs", objects.name_of(run), objects.BATCH)
