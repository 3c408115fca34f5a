"""Examines a Kubernetes cluster: what the user may do there, what pods find there, stray Jobs.

What the user may not read is reported as not checked. With an image, two pods of it are started,
asked and removed again.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.launch.doctor.check import Report
from shanty.launch.finding import Finding, Level
from shanty.launch.kubernetes import objects, pod_trouble, role
from shanty.launch.kubernetes.cluster import ApiError, Cluster, selector_of
from shanty.launch.kubernetes.options import KubernetesOptions, is_kept
from shanty.launch.kubernetes.pods import RunPods
from shanty.launch.transport import connect
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import RunDir, new_id
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec

_STARTING = 60.0  # seconds for two pods to run
_SMALL = 256 << 20  # bytes of shared memory with which most training stops
_OLD = 600.0  # seconds after which a Job of a run that is unknown here counts as stray
_NOT_LET_IN = 401  # of HTTP
_ENFORCED = "pod-security.kubernetes.io/enforce"
Object = dict[str, Any]
Say = Callable[[str], None]


def examine(job: JobSpec, home: Path, environ: Mapping[str, str], say: Say) -> Report:
    """Examine the cluster and namespace of `job.on`; PrepareError where there is none."""
    began = time.monotonic()
    cluster = Cluster((job.on or "").partition(":")[2], environ)
    examination = _Examination(cluster, job, home)
    checks = {
        "the version": examination.version,
        "the Role": examination.permissions,
        "Pod Security": examination.security,
        "network policies": examination.policies,
        "quotas": examination.quotas,
        "strays": examination.strays,
        **({"the image": examination.trial} if job.image else {}),
    }
    findings: list[Finding] = []
    unfinished = []
    for name, check in checks.items():
        say(f"{cluster.place}: checking {name}")
        try:
            findings += check()
        except ApiError as error:
            if error.status == _NOT_LET_IN:
                raise
            unfinished.append(f"{name} ({error.message or error.what})")
    if not job.image:
        unfinished.append("what pods find there (--image IMAGE starts two of them)")
    say("")
    order = list(Level)
    findings.sort(key=lambda each: order.index(each.level))
    taken = time.monotonic() - began
    return Report((cluster.place,), tuple(findings), tuple(unfinished), taken)


def sweep(job: JobSpec, home: Path, environ: Mapping[str, str]) -> list[str]:
    """Remove the Jobs of this machine's runs that are over; their names."""
    cluster = Cluster((job.on or "").partition(":")[2], environ)
    strays = _Examination(cluster, job, home).stray_jobs()
    names = [one["metadata"]["name"] for one, own in strays if own]
    for name in names:
        cluster.delete(cluster.path("jobs", name, objects.BATCH))
    return names


class _Examination:
    def __init__(self, cluster: Cluster, job: JobSpec, home: Path) -> None:
        self._cluster, self._job, self._home = cluster, job, home

    def _found(self, code: str, level: Level, what: str, *more: str, **kw: Any) -> Finding:
        return Finding(code, level, self._cluster.place, what, *more, **kw)

    def _items(self, kind: str, group: str = "api/v1") -> list[Object]:
        return list(self._cluster.call("GET", self._cluster.path(kind, group=group))["items"])

    def version(self) -> Iterator[Finding]:
        said = self._cluster.call("GET", "/version").get("gitVersion")
        if not said:
            raise PrepareError(
                f"{self._cluster.server} is not a Kubernetes API server",
                fix="check it with `kubectl cluster-info`",
            )
        yield self._found("cluster-version", Level.NOTE, f"the API server is Kubernetes {said}")

    def permissions(self) -> Iterator[Finding]:
        missing = role.lacking(self._cluster)
        if missing:
            yield self._found(
                "cluster-forbidden", Level.ERROR, "you lack permissions that runs need",
                ", ".join(missing), "ask the administrator of the cluster for this Role",
                f"shanty k8s role --namespace {self._cluster.namespace}",
            )  # fmt: skip

    def security(self) -> Iterator[Finding]:
        found = self._cluster.call("GET", f"/api/v1/namespaces/{self._cluster.namespace}")
        enforced = (found["metadata"].get("labels") or {}).get(_ENFORCED, "")
        if enforced == "restricted" and KubernetesOptions.of(self._job).uid in (None, 0):
            yield self._found(
                "cluster-security", Level.WARNING, "the namespace forbids pods that run as root",
                f"{_ENFORCED}: {enforced}", "give the ranks a user: --uid 1000",
            )  # fmt: skip

    def policies(self) -> Iterator[Finding]:
        """A policy that selects all pods and lists allowed connections may keep pods apart."""
        for policy in self._items("networkpolicies", "apis/networking.k8s.io/v1"):
            spec = policy["spec"]
            if not any((spec.get("podSelector") or {}).values()):
                yield self._found(
                    "cluster-policies", Level.WARNING,
                    f"the network policy {policy['metadata']['name']} applies to all pods",
                    "ranks need TCP between the pods of a run, on all ports",
                    f"let pods with the label {objects.LABEL} reach each other; --image IMAGE "
                    "tests it",
                )  # fmt: skip

    def quotas(self) -> Iterator[Finding]:
        for quota in self._items("resourcequotas"):
            status = quota.get("status") or {}
            used, hard = status.get("used") or {}, status.get("hard") or {}
            said = ", ".join(f"{name} {used.get(name, 0)} of {most}" for name, most in hard.items())
            name = quota["metadata"]["name"]
            yield self._found("cluster-quota", Level.NOTE, f"the quota {name} has {said}")

    def stray_jobs(self) -> list[tuple[Object, bool]]:
        """Jobs of runs that are over, and whether the run was started on this machine.

        A run from another machine counts as over when its pods have ended: a Job that waits in a
        queue has no pods yet.
        """
        selector = f"labelSelector={selector_of({objects.MANAGED: 'shanty'})}"
        path = self._cluster.path("jobs", group=objects.BATCH)
        found = []
        for job in self._cluster.call("GET", f"{path}?{selector}")["items"]:
            run = RunDir(self._home / "runs" / job["metadata"]["labels"].get(objects.LABEL, "?"))
            status = job.get("status") or {}
            own = run.path.is_dir()
            if own:
                over = read_status(run).state.final and not is_kept(run)
            else:
                ended = status.get("succeeded") or status.get("failed")
                over = _age(job) > _OLD and bool(ended) and not status.get("active")
            if over:
                found.append((job, own))
        return found

    def strays(self) -> Iterator[Finding]:
        for job, own in self.stray_jobs():
            name = job["metadata"]["name"]
            yield self._found(
                "cluster-strays", Level.WARNING, f"the Job {name} belongs to a run that is over",
                "" if own else "another machine or user started it and may still need it",
                "remove it", f"kubectl delete job {name} -n {self._cluster.namespace}",
                fixable=own,
            )  # fmt: skip

    def trial(self) -> Iterator[Finding]:
        """Start two pods of the image, and examine what they find."""
        with self._pods() as (pods, port, error):
            if error is not None:
                yield self._found("cluster-image", Level.ERROR, error.what, error.why, error.fix)
                return
            place = self._cluster.place
            hosts = [Host(pod["metadata"]["name"], pod=place) for pod in pods]
            try:
                clients = connect.connect(hosts, terminal=False)
            except ShantyError as refused:
                yield self._found(
                    "pod-refused", Level.ERROR, refused.what, refused.why, refused.fix
                )
                return
            room = clients[0].ask("survey").values["room"]
            shared = int(room["folders"]["shm"].get("size", _SMALL))
            if shared < _SMALL:
                yield self._found(
                    "cluster-shm", Level.WARNING,
                    f"pods have {shared >> 20} MiB of shared memory", "/dev/shm",
                    "check what a --k8s-patch or an admission webhook mounts there",
                )  # fmt: skip
            others = [[pod["metadata"]["name"], pod["status"]["podIP"], port] for pod in pods[1:]]
            failed = clients[0].ask("pods-reach", pods=others).values["failed"]
            for why in failed.values():
                yield self._found(
                    "cluster-reach", Level.ERROR, "pods do not reach each other", why,
                    "check the network policies of the namespace", "kubectl get networkpolicies",
                )  # fmt: skip
            for client in clients:
                client.close(0.5)

    @contextmanager
    def _pods(self) -> Iterator[tuple[list[Object], int, ShantyError | None]]:
        """Two pods of a Job that is removed afterwards, or the error where they do not start."""
        run = new_id(time.time())
        job = replace(self._job, ranks=2, nodes=2, ranks_per_host=1)
        manifest = objects.job_of(job, run)
        watched = RunPods(self._cluster, run)
        try:
            watched.make(manifest)
            watched.start()
            pods, error = _started(watched)
            yield pods, objects.port_of(manifest), error
        finally:
            watched.close()
            watched.delete()


def _started(watched: RunPods) -> tuple[list[Object], ShantyError | None]:
    def found() -> tuple[list[Object], ShantyError | None] | None:
        pods = watched.pods
        for name in pods:
            trouble = watched.trouble_of(name)
            if trouble is not None and trouble.final:
                return [], PrepareError(trouble.what, trouble.why, trouble.fix)
        running = [pod for pod in pods.values() if pod_trouble.is_running(pod)]
        return (running[:2], None) if len(running) >= 2 else None

    waits = watched.wait_for(found, _STARTING)
    if waits is not None:
        return waits
    reasons = {
        pod_trouble.waits(pod) for pod in watched.pods.values() if not pod_trouble.is_running(pod)
    }
    why = "; ".join(sorted(reasons)) or "the cluster has created none"
    return [], PrepareError(
        f"two pods did not start within {_STARTING:.0f} s", why, pod_trouble.fix_of(why)
    )


def _age(job: Object) -> float:
    made = time.strptime(job["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
    return time.time() - calendar.timegm(made)
