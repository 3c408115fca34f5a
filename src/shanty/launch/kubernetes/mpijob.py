"""Reads somebody's MPIJob of Kubeflow's (v1, v2beta1) as a job for any target.

Pure. What the job is to run, in which image, with how many ranks and what resources is taken; what
only the operator needs (keys, sshd, its host file) is not. https://www.kubeflow.org/docs/components/
trainer/legacy-v1/user-guides/mpi/ and the operator's API have the fields.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.kubernetes.objects import GPU, documents_of
from shanty.launch.kubernetes.pod_exec import CONTAINER
from shanty.launch.kubernetes.shortfall import quantity
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.resolve import LAUNCHERS
from shanty.runtime.spec import Raw

Object = Mapping[str, Any]

_VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v2beta1")
_REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")
_OWN = ("name", "image", "command", "args", "env", "ports", "workingDir", "resources")
# Flyte's program ends with 0 where a task fails, since its backend reads an error file.
_FLYTE = "pyflyte-execute"
_FLYTES_FETCHER = "pyflyte-fast-execute"  # gets the code, and starts the launcher's line
_NOT_OF_PODS = ("containers", "restartPolicy", "hostname", "subdomain")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an MPIJob asks for: fields of JobSpec in `given`, and what of it cannot be kept.

    `command` is None where the image's entry point has it.
    """

    command: Raw | None
    given: dict[str, Any]
    notes: tuple[str, ...]


def read(path: Path) -> Manifest:
    """Read the MPIJob in a file; UsageError where there is none, or not one."""
    if not path.exists():
        raise NotFoundError(f"there is no file {path}")
    documents = documents_of(path, "manifest")
    jobs = [one for one in documents if isinstance(one, dict) and one.get("kind") == "MPIJob"]
    if len(jobs) != 1:
        kinds = [str(one.get("kind")) for one in documents if isinstance(one, dict)]
        raise UsageError(
            f"{path} has {len(jobs) or 'no'} MPIJob{'s' if len(jobs) > 1 else ''}",
            f"it has {', '.join(kinds)}" if kinds else "it has no object of Kubernetes",
            "-f takes a file with one MPIJob (kubeflow.org/v1 or v2beta1)",
        )
    try:
        return manifest_of(jobs[0])
    except (
        KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError,
    ) as error:  # fmt: skip
        raise UsageError(
            f"the MPIJob in {path} lacks something, or has it in another form",
            f"{type(error).__name__}: {error}",
            "see what `kubectl apply --dry-run=server -f` says of it",
        ) from error  # fmt: skip


def manifest_of(job: Object) -> Manifest:
    """What an MPIJob asks for; KeyError, TypeError, … where it lacks what it has to have."""
    if job.get("apiVersion") not in _VERSIONS:
        raise UsageError(
            f"an MPIJob of version {job.get('apiVersion')} is not known",
            fix=f"known are {', '.join(_VERSIONS)}",
        )
    spec, notes = job["spec"], []
    replicas = spec["mpiReplicaSpecs"]
    launcher = replicas["Launcher"]["template"]["spec"]
    worker_spec = replicas.get("Worker") or {}
    alone = not worker_spec.get("replicas", 1) or not worker_spec
    template = replicas["Launcher"]["template"] if alone else worker_spec["template"]
    workers = 1 if alone else int(worker_spec.get("replicas", 1))
    slots = int(spec.get("slotsPerWorker", 1))
    if spec.get("runLauncherAsWorker") and not alone:
        workers += 1
        notes.append("the launcher counts as a worker, and is as the others are")
    if workers < 1 or slots < 1:
        raise ValueError(f"{workers} workers of {slots} slots")
    main, starts = template["spec"]["containers"][0], launcher["containers"][0]
    if starts.get("image") != main.get("image"):
        notes.append(
            f"the launcher runs in the workers' image {main.get('image')}, "
            f"not in {starts.get('image')}"
        )
    policy = {**(spec.get("runPolicy") or {})}
    given: dict[str, Any] = {
        "name": _text(job["metadata"].get("name") or "mpijob", "metadata.name"),
        "image": _text(main["image"], "image"),
        "ranks": workers * slots,
        "nodes": workers,
        "ranks_per_host": slots,
        "env": {**_variables(main, notes), **_variables(starts, notes)},
        "mpi": "image",
        "k8s_patch": json.dumps(_patch(template)),
        **_resources(main, slots),
    }
    if policy.get("activeDeadlineSeconds"):
        given["time_limit"] = float(policy["activeDeadlineSeconds"])
    if policy.get("backoffLimit") is not None:
        given["retries"] = int(policy["backoffLimit"])
    scheduling = policy.get("schedulingPolicy") or {}
    if scheduling.get("queue"):
        given["queue"] = scheduling["queue"]
    if scheduling.get("priorityClass"):
        given["priority_class"] = scheduling["priorityClass"]
    if (scheduling.get("scheduleTimeoutSeconds") or 0) > 0:
        given["schedule_timeout"] = float(scheduling["scheduleTimeoutSeconds"])
    if policy.get("suspend"):
        notes.append("it is suspended there; here it is run")
    command = _command(starts, notes)
    if command is not None and any(_FLYTE in word for word in command.argv):
        given["env"].setdefault("FLYTE_FAIL_ON_ERROR", "true")
    return Manifest(command, given, tuple(dict.fromkeys(notes)))


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is to be a text, not {value!r}")
    return value


def _words(container: Object, key: str) -> list[str]:
    """A list of words as Kubernetes has them: $(NAME) is a variable of the container, $$ a $."""
    given = container.get(key) or []
    if not isinstance(given, list):
        raise TypeError(f"{key} is to be a list of texts, not {given!r}")
    values = {one["name"]: str(one.get("value", "")) for one in container.get("env") or ()}

    def put_in(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else values.get(name, found[0])

    return [_REFERENCE.sub(put_in, _text(word, f"{key}: each of it")) for word in given]


def _command(container: Object, notes: list[str]) -> Raw | None:
    words = [*_words(container, "command"), *_words(container, "args")]
    if not container.get("command"):
        if not words or Path(words[0]).name not in (*LAUNCHERS, _FLYTES_FETCHER):
            return None
        notes.append("its launcher has arguments alone: they are run, not the image's entry point")
    if container.get("workingDir"):
        return Raw((f"cd {shlex.quote(container['workingDir'])} && {shlex.join(words)}",), True)
    return Raw(tuple(words))


def _variables(container: Object, notes: list[str]) -> dict[str, str]:
    found = {}
    for one in container.get("env") or ():
        name = _text(one["name"], "the name of a variable")
        if not name or "=" in name or "\0" in f"{name}{one.get('value')}":
            raise ValueError(f"{name!r} cannot be set as a variable")
        if "valueFrom" in one:
            notes.append(f"{one['name']} is not set: its value is the cluster's (valueFrom)")
        else:
            found[one["name"]] = str(one.get("value", ""))
    if container.get("envFrom"):
        notes.append("envFrom is left out: those variables are the cluster's")
    return found


def _resources(container: Object, slots: int) -> dict[str, Any]:
    """What each rank needs, for targets that are no cluster."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    found: dict[str, Any] = {}
    if "memory" in asked:
        found["memory_per_rank"] = int(quantity(asked["memory"]) / slots)
    if GPU in asked:
        found["gpus_per_rank"] = int(quantity(asked[GPU]) / slots)
    return found


def _patch(template: Object) -> dict[str, Any]:
    """What a worker's pods have besides, as a patch of a run's Job."""
    main, *others = template["spec"]["containers"]
    resources = main.get("resources") or {}
    limits = dict(resources.get("limits") or {})
    requests = {**limits, **(resources.get("requests") or {})}
    its = {key: value for key, value in main.items() if key not in _OWN}
    its |= {"name": CONTAINER, "resources": {"requests": {"cpu": None, **requests}}}
    if limits:
        its["resources"]["limits"] = limits
    spec = {key: value for key, value in template["spec"].items() if key not in _NOT_OF_PODS}
    metadata = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if key in ("labels", "annotations")
    }
    taken = [
        {**one, "name": f"{CONTAINER}-own"} if one.get("name") == CONTAINER else one
        for one in others
    ]
    pod = {"spec": {**spec, "containers": [its, *taken]}}
    return {"spec": {"template": {**pod, **({"metadata": metadata} if metadata else {})}}}
