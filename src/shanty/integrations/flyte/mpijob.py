"""The MPIJob that stands for an MPI task: Flyte's plugin makes one like it on a cluster.

Its command is the plugin's mpirun line; in place of Flyte's own program, which fetches inputs from
where Flyte has put them, each rank gets them on its command line.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from shanty.integrations.flyte.task_options import named_image, of_task

_RESOURCES = {"cpu": "cpu", "mem": "memory", "gpu": "nvidia.com/gpu"}


def made_of(task: Any, inputs: Any, image: str) -> dict[str, Any]:
    """Return the MPIJob of a task with its inputs, a LiteralMap.

    image: for what names none itself. Raises UsageError for what makes no sense.
    """
    wanted, config = of_task(task), task.task_config
    launcher = {
        "name": "launcher",
        "image": config.launcher.image or named_image(task) or image,
        "command": list(wanted.command) or _line(task, inputs, wanted.ranks),
        "env": _variables(wanted.env),
        **_resources(config.launcher),
    }
    worker = {
        "name": "worker",
        "image": wanted.image or image,
        "env": _variables(wanted.env),
        **(_resources(config.worker) or _resources(task.resources)),
    }
    if config.worker.command:
        worker["command"] = list(config.worker.command)
    policy = {
        "activeDeadlineSeconds": int(wanted.time_limit) if wanted.time_limit else None,
        "backoffLimit": wanted.backoff or None,
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MPIJob",
        "metadata": {"name": _dns_name(wanted.name)},
        "spec": {
            "slotsPerWorker": wanted.slots,
            "runPolicy": {key: value for key, value in policy.items() if value},
            "mpiReplicaSpecs": {
                "Launcher": _replica(1, launcher),
                "Worker": _replica(wanted.workers, worker),
            },
        },
    }


def _replica(count: int, container: Mapping[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "template": {"spec": {"containers": [dict(container)]}}}


def _line(task: Any, inputs: Any, ranks: int) -> list[str]:
    resolver = task.task_resolver
    data = base64.b64encode(inputs.to_flyte_idl().SerializeToString(deterministic=True)).decode()
    program = ["python", "-m", "shanty.tasks.flyte", "--inputs", data, resolver.location]
    return [*task._MPI_BASE_COMMAND, "-np", str(ranks), *program, *resolver.loader_args(None, task)]


def _variables(env: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in env.items()]


def _resources(owner: Any) -> dict[str, Any]:
    found: dict[str, dict[str, str]] = {}
    for kind in ("requests", "limits"):
        given = getattr(owner, kind, None)
        texts = {key: getattr(given, name, None) for name, key in _RESOURCES.items()}
        known = {key: str(text) for key, text in texts.items() if text is not None}
        if known:
            found[kind] = known
    return {"resources": found} if found else {}


def _dns_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[-40:].strip("-") or "mpijob"
