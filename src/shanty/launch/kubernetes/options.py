"""The options of a job that Kubernetes declares, each with its type."""

from __future__ import annotations

from typing import NamedTuple

from shanty.runtime.old_jobs import options_of
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import JobSpec


class KubernetesOptions(NamedTuple):
    """What a job asks of Kubernetes only.

    `node_selector` and `labels` are KEY=VALUE each, `tolerations` taints as kubectl writes them,
    `pull_secrets` names of Secrets. `k8s_patch` is a patch of the Job, as JSON; `queue` is a queue
    of Kueue, `operator` the kind of object that the Kubeflow operator gets instead of a Job.
    `schedule_timeout` is the seconds in which all pods have to run; `keep` leaves them there after
    the end.
    """

    uid: int | None = None
    node_selector: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    service_account: str = ""
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    queue: str = ""
    k8s_patch: str = ""
    operator: str = ""
    schedule_timeout: float = 300.0
    keep: bool = False

    @classmethod
    def of(cls, job: JobSpec) -> KubernetesOptions:
        """Return the options of a job."""
        return cls(**{name: job.options[name] for name in cls._fields if name in job.options})


def is_kept(run: RunDir) -> bool:
    """Return true where the pods of a run stay there after its end."""
    return bool(options_of(read_json(run.job) or {}).get("keep"))
