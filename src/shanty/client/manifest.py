"""Makes a job of a file with an MPIJob, the object of the Kubeflow operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shanty.client import options
from shanty.client.command import make_command
from shanty.client.context import note
from shanty.client.jobs import job_typed, queue_of
from shanty.launch.options.kubernetes import KUBERNETES
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import JobSpec


def of_manifest(
    path: Path, command: Sequence[str], folder: Path, given: Mapping[str, Any]
) -> JobSpec:
    """Make the job of an MPIJob's file; what was typed comes before what that says."""
    from shanty.launch.kubernetes import mpijob, objects

    typed = {key: value for key, value in given.items() if value not in (None, (), {})}
    table = options.defaults(folder)
    on_cluster = queue_of(typed, table) == KUBERNETES.scheme
    if typed.get("operator"):
        raise UsageError(
            f"--operator {typed['operator']} makes an object, and --manifest {path} has one",
            fix=f"kubectl apply -f {path} hands it to the operator; leave --operator out here",
        )
    usual = {key: str(value) for key, value in table.get("env", {}).items()}
    found = mpijob.read(path, cluster=on_cluster, env=given["env"], usual=usual)
    own = dict(found.given)
    if "ranks" in typed or "nodes" in typed:  # then the other follows
        own = {key: value for key, value in own.items() if key not in ("ranks", "nodes")}
    if not on_cluster:
        own = {key: value for key, value in own.items() if key not in KUBERNETES.fields}
        if not any(each.get(key) for each in (typed, table) for key in ("on", "hostfile")):
            # all of it is on this machine
            own |= {"ranks_per_host": None, "oversubscribe": True}
    else:
        own["k8s_patch"] = mpijob.without(own["k8s_patch"], typed)
        on = str(typed.get("on") or table["on"])
        if found.namespace and "/" not in on:
            typed["on"] = f"{on}{'' if ':' in on else ':'}/{found.namespace}"
        if "k8s_patch" in typed:
            both = objects.merged(json.loads(own["k8s_patch"]), json.loads(typed["k8s_patch"]))
            typed["k8s_patch"] = json.dumps(both)
    for each in filter(None, (*found.notes, found.notice())):
        note(f"--manifest {path.name}: {each}")
    what = make_command(command, folder, raw=False) if command else found.command
    if what is None:
        raise UsageError(
            "the launcher of the MPIJob has no command",
            "it is what the image's entry point makes of its arguments, which only a cluster sees",
            "give the line after --, as: shanty run --manifest FILE -- mpirun python train.py",
        )
    values = {**dict.fromkeys(given), **own, **typed}
    return job_typed(what, folder, {**values, "env": {**own["env"], **given["env"]}})
