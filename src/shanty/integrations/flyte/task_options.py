"""What an MPI task of Flyte's asks for, as options of a run.

Pure: reads the task's `MPIJob` or `HorovodJob`, its resources and metadata. The plugin's own words:
https://github.com/flyteorg/flytekit/tree/master/plugins/flytekit-kf-mpi
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shanty.client.quantities import amount, quantity
from shanty.runtime.counted import counted
from shanty.runtime.errors import UsageError

RESOURCES = ("cpu", "mem", "gpu")
_OF_THE_PLUGIN = {"NCCL_DEBUG": "INFO"}  # its mpirun line sets that for all ranks


@dataclass(frozen=True)
class Wanted:
    """What a task asks for.

    `resources` are of each worker: cores, bytes, GPUs. `time_limit` is seconds; `backoff` how often
    a job is started again where it failed as such; `retries` how often the task is. `command` is
    the launcher's own, in place of the task's function. `image` is that of its workers, "" where it
    names none.
    """

    name: str
    workers: int
    slots: int
    resources: Mapping[str, float] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    time_limit: float | None = None
    backoff: int = 0
    retries: int = 0
    command: tuple[str, ...] = ()
    image: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """How many ranks there are: the plugin's -np."""
        return self.workers * self.slots

    def options(self, *, hosts: int | None, queued: bool) -> dict[str, Any]:
        """Return options of a run, by their names in JobSpec.

        hosts: how many there are; None: not known, or not asked. queued: the hosts are made, or
        given, for the run. Neither: all is on this machine.
        """
        cores = self.resources.get("cpu", 0.0) / self.slots
        found: dict[str, Any] = {
            "ranks": self.ranks,
            "env": dict(self.env),
            "time_limit": self.time_limit,
            "retries": self.backoff,
            "cpus_per_rank": int(cores) or None,
            "oversubscribe": cores < 1,  # a worker may be less than a core
            "memory_per_rank": int(self.resources.get("mem", 0.0) / self.slots) or None,
            "gpus_per_rank": int(self.resources.get("gpu", 0.0) / self.slots) or None,
        }
        if queued:
            found["ranks_per_host"] = self.slots
        elif hosts:
            found["ranks_per_host"] = -(-self.workers // hosts) * self.slots
        return {name: value for name, value in found.items() if value}

    def described(self) -> str:
        """Return what it asks for, for people: 2 workers of 1 slot, each 4 CPU, 8 GiB."""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        slots = f"{self.slots} slot{'s' if self.slots > 1 else ''}"
        each = []
        if "cpu" in self.resources:
            each.append(f"{self.resources['cpu']:g} CPU")
        if "mem" in self.resources:
            each.append(f"{amount(int(self.resources['mem']))} of memory")
        if "gpu" in self.resources:
            each.append(f"{self.resources['gpu']:g} GPU")
        return f"{workers} of {slots}" + (f", each {', '.join(each)}" if each else "")


def of_task(task: Any) -> Wanted:
    """Read what a task asks for; UsageError where it makes no sense."""
    config, metadata = task.task_config, task.metadata
    name = str(task.name)
    workers = int(config.num_workers or config.worker.replicas or 1)
    slots = int(config.slots or 1)
    if workers < 1 or slots < 1:
        raise UsageError(
            f"{name} asks for {counted(workers, 'worker')} of {counted(slots, 'slot')}"
        )
    policy = config.run_policy
    deadline = policy and policy.active_deadline_seconds
    limits = [float(deadline)] if deadline else []
    if metadata.timeout:
        limits.append(metadata.timeout.total_seconds())
    return Wanted(
        name=name,
        workers=workers,
        slots=slots,
        resources=_resources(task, name),
        env={**_OF_THE_PLUGIN, **{key: str(text) for key, text in task.environment.items()}},
        time_limit=min(limits, default=None),
        backoff=int(policy.backoff_limit or 0) if policy else 0,
        retries=int(metadata.retries or 0),
        command=tuple(config.launcher.command or ()),
        image=str(config.worker.image or named_image(task)),
        notes=tuple(_notes(task)),
    )


def named_image(task: Any) -> str:
    """Return the task's image; "" for an ImageSpec, or where parts of its name are to be set."""
    image = task.container_image
    return image if isinstance(image, str) and "{{" not in image else ""


def _resources(task: Any, name: str) -> dict[str, float]:
    """Return what each worker asks for: by its own words, else by the task's."""
    worker = task.task_config.worker
    requests, limits = worker.requests, worker.limits
    if requests is None and limits is None:
        requests, limits = task.resources.requests, task.resources.limits
    found = {}
    for key in RESOURCES:
        texts = [getattr(each, key, None) for each in (requests, limits)]
        text = texts[0] if texts[0] is not None else texts[1]
        if text is None:
            continue
        try:
            value = quantity(text)
        except ValueError as error:
            raise UsageError(f"{name} asks for {key}={text!r}", str(error)) from error
        if value > 0:
            found[key] = value
    return found


def _notes(task: Any) -> list[str]:
    config, found = task.task_config, []
    if task.container_image and not named_image(task):
        found.append("its image is left out, since it has to be built first; --image names one")
    if config.worker.command:
        found.append("the workers' command is left out: it starts their sshd on a cluster")
    if config.run_policy and config.run_policy.backoff_limit:
        found.append(
            "backoff_limit counts attempts after a lost host, retries those after other failures"
        )
    if task.pod_template is not None:
        found.append("its pod template is left out")
    if task.security_context is not None and task.security_context.secrets:
        found.append("its secrets are this machine's, as flytekit finds them; ranks get none")
    return found
