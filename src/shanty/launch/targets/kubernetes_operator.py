"""Follows a run that one of Kubeflow's operators makes: `--operator mpijob`, `--operator trainjob`.

The operator makes the pods, and nothing of shanty's is in them. What is known of the run is the
status of the operator's object, the output of the launcher's pod, and how that pod ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.launch.content import workspace
from shanty.launch.kubernetes import kubeflow, pod_trouble
from shanty.launch.kubernetes.cluster import ApiError, Cluster, UnreachableError
from shanty.launch.kubernetes.options import KubernetesOptions
from shanty.launch.kubernetes.pods import RunPods
from shanty.runtime.errors import LaunchError, PrepareError
from shanty.runtime.run_status import conclude, conclude_error, read_status, write_reason
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import Failure, JobSpec, State, Status

Object = dict[str, Any]

_ATTENDED = 5.0  # seconds in which an operator says that it has seen an object
_LOOK = 1.0  # seconds between two questions to the API
_LAST_LINES = 20
_FINAL = {
    "Succeeded": State.SUCCEEDED, "Complete": State.SUCCEEDED, "Failed": State.FAILED,
}  # fmt: skip


def manifests(job: JobSpec, run: str, flavour: str) -> list[Object]:
    """All objects of the run, the operator's own one last."""
    folder = Path(job.workdir)
    files = kubeflow.files_of(folder, workspace.listing(folder)[0])
    return kubeflow.made_of(KubernetesOptions.of(job).operator, job, run, flavour, files)


def try_out(cluster: Cluster, made: list[Object]) -> None:
    """Have the API server check the objects; PrepareError where it does not know their kind."""
    for one in made:
        try:
            cluster.try_out(one)
        except ApiError as error:
            if error.status != 404:
                raise
            raise PrepareError(
                f"the cluster has no {one['kind']}",
                f"it does not know {one['apiVersion']}: Kubeflow's operator is not installed there",
                "leave --operator out: shanty's own pods need no operator",
            ) from error


class OperatorRun:
    """A run that an operator makes."""

    def __init__(self, cluster: Cluster, run: RunDir, job: JobSpec, flavour: str) -> None:
        self._cluster, self._run, self._job = cluster, run, job
        self._made = manifests(job, run.id, flavour)
        self._pods = RunPods(cluster, run.id)
        self._ended = threading.Event()

    @property
    def path(self) -> str:
        """The path of the operator's object, which owns all else."""
        return self._cluster.path_of(self._made[-1], named=True)

    def make(self) -> None:
        """Make the objects; the ConfigMap is owned by the operator's own."""
        config, *others, own = self._made
        for one in others:
            self._cluster.create(one)
        owner = self._cluster.create(own)
        reference = {
            "apiVersion": own["apiVersion"], "kind": own["kind"],
            "name": own["metadata"]["name"], "uid": owner["metadata"]["uid"],
        }  # fmt: skip
        owned = {**config["metadata"], "ownerReferences": [reference]}
        self._cluster.create({**config, "metadata": owned})

    def delete(self) -> None:
        """Delete the objects, the operator's own first, and with it what it owns."""
        for one in reversed(self._made[1:]):
            self._cluster.delete(self._cluster.path_of(one, named=True))

    def follow(self, tell: Callable[[RunPods], None]) -> None:
        """Follow the run to its end and write its last status; calls `tell` after each look."""
        self._pods.start()
        copier = threading.Thread(target=self._copy_log, daemon=True)
        copier.start()
        while True:
            with contextlib.suppress(UnreachableError):
                if self._look():
                    break
            tell(self._pods)
            time.sleep(_LOOK)
        self._ended.set()
        copier.join(10)
        self._pods.close()

    def _look(self) -> bool:
        """Write the state of the run; True at its end."""
        try:
            found = self._cluster.call("GET", self.path)
        except ApiError as error:
            if error.status != 404:
                raise
            what = f"the {self._made[-1]['kind']} {self._made[-1]['metadata']['name']} was deleted"
            conclude_error(self._run, LaunchError(what))
            return True
        said = (found.get("status") or {}).get("conditions") or ()
        conditions = {one["type"]: one for one in said if one.get("status") == "True"}
        for kind, state in _FINAL.items():
            if kind in conditions:
                self._conclude(state, conditions[kind])
                return True
        status = read_status(self._run)
        running = [pod for pod in self._pods.pods.values() if pod_trouble.is_running(pod)]
        # Trainer has no condition for it, and does not start its pods apart.
        runs = "Running" in conditions or (running and self._made[-1]["kind"] == "TrainJob")
        if runs and status.state is not State.RUNNING:
            status = replace(status, state=State.RUNNING, started=time.time(), reason="")
            write_json(self._run.status, status.to_json())
        elif status.state is State.PENDING and not (said or self._pods.pods):
            self._unattended(status)
        elif status.state is State.PENDING:
            waiting = [pod for pod in self._pods.pods.values() if not pod_trouble.is_running(pod)]
            troubles = [self._pods.trouble_of(pod["metadata"]["name"]) for pod in waiting]
            why = [one.what for one in troubles if one] or [
                pod_trouble.waits(pod) for pod in waiting
            ]
            reason = f"the operator starts its pods; {len(running)} run"
            reason += f", {why[0]}" if why else ""
            write_reason(self._run, reason)
        return False

    def _unattended(self, status: Status) -> None:
        """No operator has written a status yet; LaunchError once that has taken too long."""
        waited, kind = time.time() - (status.created or time.time()), self._made[-1]["kind"]
        what = f"no operator has taken up the {kind}"
        if waited > KubernetesOptions.of(self._job).schedule_timeout:
            raise LaunchError(
                f"{what} for {waited:.0f} s",
                "the cluster knows the kind, but nothing there makes pods for it",
                "see whether Kubeflow's operator runs; shanty's own pods need none (no --operator)",
            )
        if waited > _ATTENDED:
            write_reason(self._run, f"{what} yet")

    def _launchers(self) -> list[Object]:
        return [
            pod
            for pod in self._pods.pods.values()
            if any(one["name"] == "launcher" for one in pod["spec"]["containers"])
        ]

    def _conclude(self, state: State, condition: Object) -> None:
        code = 0 if state is State.SUCCEEDED else LaunchError.exit_code
        failure = None
        if state is State.FAILED:
            why = str(condition.get("message", ""))
            failure = Failure("the operator says that the launcher failed", why)
            for pod in self._launchers():
                for one in (pod.get("status") or {}).get("containerStatuses") or ():
                    ended = (one.get("state") or {}).get("terminated")
                    if ended:
                        code = int(ended["exitCode"])
                        log = self._run.logs / "launcher.log"
                        lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                        what = f"the launcher ended with exit code {code}"
                        code = code or LaunchError.exit_code  # a launcher that was tried again
                        failure = Failure(what, why, lines=tuple(lines), log=str(log))
        conclude(self._run, state, failure, code)

    def _copy_log(self) -> None:
        """Copy what the launchers print, one after the other; from where a stream broke off."""
        written: dict[str, int] = {}
        file = self._run.logs / "launcher.log"
        if file.exists():  # who watched the run before has copied that of the first one
            written = {
                pod["metadata"]["name"]: file.stat().st_size for pod in self._launchers()[:1]
            }
        while True:
            last = self._ended.is_set()
            for pod in self._launchers():
                name = pod["metadata"]["name"]
                with contextlib.suppress(ApiError, UnreachableError):
                    written[name] = self._copied(name, written.get(name, 0))
            if last:
                return
            self._ended.wait(_LOOK)

    def _copied(self, name: str, before: int) -> int:
        """Follow the log of a pod, of which `before` bytes are here; returns its length."""
        path = f"{self._cluster.path('pods', f'{name}/log')}?container=launcher&follow=true"
        seen = 0
        with (self._run.logs / "launcher.log").open("ab", buffering=0) as file:
            try:
                for piece in self._cluster.stream(path):
                    file.write(piece[max(0, before - seen) :])
                    seen += len(piece)
            except UnreachableError:
                pass  # nobody has printed anything for a while, too
        return max(before, seen)
