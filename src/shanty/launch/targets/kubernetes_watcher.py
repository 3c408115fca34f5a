"""The process that watches one run on Kubernetes: `-m …targets.kubernetes_watcher RUN_DIR`.

It outlives its terminal, as a run's controller does. It makes the run's objects, waits
for the pods, prepares them as hosts are prepared, starts the run on the first of them, copies its
files here, and deletes the objects at the end. What it has come to is in the run's `site.json`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from shanty.launch import lock
from shanty.launch.kubernetes import objects, pod_trouble
from shanty.launch.kubernetes.cluster import ApiError, UnreachableError
from shanty.launch.kubernetes.options import KubernetesOptions
from shanty.launch.kubernetes.pod_exec import cluster
from shanty.launch.kubernetes.pods import RunPods
from shanty.launch.run_mirror import RunMirror
from shanty.launch.targets.kubernetes_operator import OperatorRun
from shanty.launch.targets.kubernetes_site import ClusterSite
from shanty.launch.targets.kubernetes_start import start_in
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime import site
from shanty.runtime.errors import (
    STOPPED_EXIT,
    LaunchError,
    LostError,
    PrepareError,
    ShantyError,
)
from shanty.runtime.run_agents import agents_record, is_alive
from shanty.runtime.run_status import conclude, conclude_error, read_status, write_reason
from shanty.runtime.rundir import RunDir, append_line, read_json, write_json
from shanty.runtime.site import Host, Site
from shanty.runtime.spec import JobSpec, State, Status

RECORD = "watcher.json"  # who watches a run
AWAY = "cluster.json"  # since when the cluster has not answered, and what it says
ASKED_TO_STOP = "stop"  # exists where somebody wants the run ended
LOG = "watcher.jsonl"  # how far it came, and when: `events.jsonl` is a copy of the controller's
_LOCK = "watcher.lock"
_LOOK = 0.2  # seconds between two looks at a run
_ASKED = 2.0  # seconds between two questions why pods are missing
_SLOW = 10.0  # seconds after which a pod that has a node and does not start is asked about
_WORD = 3.0  # seconds that Kubernetes has to say what became of a pod
_DELETING = 600.0  # seconds for the objects to be deleted, while the cluster does not answer
_AWAY = 5.0  # seconds without an answer after which it is said
_PERSISTS = 20.0  # seconds for which the cluster refuses pods until that counts: others may end
_SUSPENDED = "suspended"  # a Job that a queue holds back
_AGAIN = 30.0  # seconds after a failure of ours until a run is watched again
_FAILED = "the process that watches the run has failed"


class Stop(BaseException):
    """Somebody stops the run while it is being started."""


class Watcher:
    """Watches one run to its end."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.site = site.read(run) or Site()
        self.at = ClusterSite.of(self.site)
        if not self.at.place:
            raise ValueError(f"{run.site} names no cluster")
        self.job = JobSpec.from_json(read_json(run.job) or {})
        self.options = KubernetesOptions.of(self.job)
        self.cluster = cluster(self.at.place)
        self.pods = RunPods(self.cluster, run.id)
        self._saying = threading.Lock()
        self._refused_since: float | None = None  # the run's pods
        self._refusal: pod_trouble.Trouble | None = None  # the last
        self._delete: Callable[[], None] = self.pods.delete

    def see_through(self) -> None:
        """Do all that is left to do for the run."""
        try:
            if self._is_to_stop and not self.is_on:
                raise Stop
            if self.options.operator:
                self._by_operator()
            elif self.site.names_hosts:
                self.pods.start()
                self._follow(site.hosts_of(self.run))
            elif self.at.tried:
                raise LostError("the process that started the run was killed", fix="run again")
            else:
                self._begin()
        except Stop:
            if not self.is_on or self._is_to_stop:
                conclude(self.run, State.STOPPED, None, STOPPED_EXIT)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is not to suffer
            if not isinstance(error, ShantyError):
                traceback.print_exc()
            if self.is_on and not isinstance(error, LaunchError):  # it is well, whatever we are
                write_away(self.run, _FAILED, str(error), _AGAIN)
            elif isinstance(error, ShantyError):
                conclude_error(self.run, error)  # LaunchError is of the run itself
        if self.is_on and not read_status(self.run).state.final:
            return  # the next one goes on from here
        self._clean_up()
        fix = f"this is a bug of shanty's: please report {log_of(self.run)}"
        conclude_error(self.run, LostError(_FAILED, fix=fix))  # unless it has come to its end

    @property
    def is_on(self) -> bool:
        """True where the run goes on in the cluster without us."""
        return self.site.names_hosts or self.at.begun

    @property
    def _is_to_stop(self) -> bool:
        return (self.run.path / ASKED_TO_STOP).exists()

    def _note(self, at: ClusterSite) -> None:
        """Write down how far it has come."""
        self.at = at
        self.site = at.into(self.site)
        site.write(self.run, self.site)

    def say(self, stage: str, detail: str = "") -> None:
        """Say why the run has not begun yet."""
        reason = "; ".join(filter(None, [stage, detail]))
        with self._saying:
            write_reason(self.run, reason)

    def _by_operator(self) -> None:
        """Have an operator make the run, or go on following its run."""
        operator = OperatorRun(self.cluster, self.run, self.job, self.at.flavour)
        signal.signal(signal.SIGTERM, _stop)
        self._delete = operator.delete
        if not self.at.begun:
            # It may be made, whatever becomes of the answer.
            self._note(self.at._replace(tried=True, made=True))
            operator.make()
            self._note(self.at._replace(begun=True))
        operator.follow(self._tell_if_away)

    # ---------------------------------------------------------------------------- starting

    def _begin(self) -> None:
        signal.signal(signal.SIGTERM, _stop)
        job = objects.job_of(self.job, self.run.id)
        # They may be made, whatever becomes of the answer.
        self._note(self.at._replace(tried=True, made=True))
        self.say("its pods are being made")
        self.pods.make(job)
        self.pods.start()
        pods = self._await_pods()
        self._event("pods-running", requests=self.cluster.requests)
        self.say("its pods are prepared")
        port = objects.port_of(job)
        hosts = [
            Host(pod["metadata"]["name"], slots=objects.slots_of(self.job), pod=self.cluster.place)
            for pod in pods
        ]
        addresses = [pod["status"]["podIP"] for pod in pods]
        try:
            clients = start_in(
                hosts, addresses, port, self.job, self.run,
                lambda text: self.say("its pods are prepared", text), self._warn, self._committed,
            )  # fmt: skip
        except ShantyError as error:
            raise self._told_by_pods(hosts, error) from error
        sent = {client.host.name: client.bytes_sent for client in clients}
        self._event("prepared", requests=self.cluster.requests, sent=sent)
        self._follow(hosts, clients)

    def _event(self, kind: str, **more: Any) -> None:
        append_line(self.run.path / LOG, {"time": time.time(), "event": kind, **more})

    def _committed(self, hosts: Sequence[Host]) -> None:
        """From now on the run is in its pods, and nobody stops it by ending this process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.site = self.site._replace(hosts=tuple(hosts))
        site.write(self.run, self.site)

    def _await_pods(self) -> list[dict[str, Any]]:
        """Wait until all pods run, and return them; LaunchError with the reason if they cannot."""
        wanted, began = objects.pods_of(self.job), time.monotonic()
        asked, word, warned = 0.0, "", ""

        def ready() -> list[dict[str, Any]] | None:
            pods = [pod for pod in self.pods.pods.values() if pod_trouble.is_running(pod)]
            return pods if len(pods) >= wanted else None

        while (found := self.pods.wait_for(ready, _LOOK)) is None:
            now, pods = time.monotonic(), self.pods.pods
            ended = self.pods.end_of(*pods)
            if ended is not None:
                raise self._with_output(ended).error
            if self.pods.error is not None:
                raise self.pods.error
            waiting = [pod for pod in pods.values() if not pod_trouble.is_running(pod)]
            running = len(pods) - len(waiting)
            detail = warned or (pod_trouble.waits(waiting[0]) if waiting else "")
            if now > asked + _ASKED and len(pods) < wanted:
                asked = now
                word = self._word_on_job()
            elif waiting and now > max(asked, began) + _SLOW:
                asked, word = now, ""
                warned = self._word_on_pod(waiting[0])
            if word == _SUSPENDED:
                began = now
                self.say(f"it is in the queue {self.options.queue}".rstrip())
            else:
                self.say(
                    "its pods are being started", word or f"{running} of {wanted} run; {detail}"
                )
            if now > began + self.options.schedule_timeout:
                raise self._shortfall(running, wanted)
        chosen = sorted(found, key=lambda pod: (pod["spec"]["nodeName"], pod["metadata"]["name"]))
        return chosen[:wanted]

    def _word_on_job(self) -> str:
        """Why pods are missing, if the Job says so; LaunchError where there will be none."""
        try:
            job = self.cluster.call("GET", self.pods.job_path)
            if job["spec"].get("suspend"):
                return _SUSPENDED
            events = self._events_of(objects.name_of(self.run.id))
        except UnreachableError:
            return ""
        except ApiError as error:
            if error.status == 404:
                raise LaunchError("the run's Job was deleted", "shanty did not do it") from error
            if error.status == 403:  # events may not be read; the bound is there
                return ""
            raise
        refusal = pod_trouble.refusal(events)
        if refusal is None:
            self._refused_since = self._refusal = None
            return ""
        now = time.monotonic()
        self._refused_since, self._refusal = self._refused_since or now, refusal
        if refusal.final or now > self._refused_since + _PERSISTS:
            raise refusal.error
        return f"{refusal.what}: {refusal.why}"

    def _word_on_pod(self, pod: dict[str, Any]) -> str:
        """Why a pod that has a node does not start, by its events; "" where none says it."""
        with contextlib.suppress(ApiError, UnreachableError):
            events = self._events_of(pod["metadata"]["name"])
            word = pod_trouble.waits(pod, pod_trouble.warning(events))
            return f"{pod['metadata']['name']}: {word}"
        return ""

    def _events_of(self, name: str) -> list[dict[str, Any]]:
        path = f"{self.cluster.path('events')}?fieldSelector=involvedObject.name%3D{name}"
        found: list[dict[str, Any]] = self.cluster.call("GET", path)["items"]
        return found

    def _shortfall(self, running: int, wanted: int) -> LaunchError:
        """Why not all pods run, in numbers where the cluster lets us see its nodes."""
        waiting = [pod for pod in self.pods.pods.values() if not pod_trouble.is_running(pod)]
        what = f"{running} of {wanted} pods run after {self.options.schedule_timeout:.0f} s"
        if not waiting and self._refusal is not None:
            refused = self._refusal
            return LaunchError(what, f"{refused.what}: {refused.why}", refused.fix)
        if not waiting:
            return LaunchError(what, "the cluster has not made the others", "see its Job's events")
        pod = waiting[0]
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        trouble = self.pods.trouble_of(name)  # that may pass
        if trouble is not None:
            return LaunchError(what, f"{trouble.what}: {trouble.why}", trouble.fix)
        if node:
            why = self._word_on_pod(pod) or f"{name}: {pod_trouble.waits(pod)}"
            fix = f"look at the pod and its node: kubectl describe pod {name}; kubectl describe "
            longer = "; it may need longer: --schedule-timeout"
            return LaunchError(what, why, f"{fix}node {node}{longer}")
        why = pod_trouble.waits(pod)
        with contextlib.suppress(ApiError, UnreachableError, ValueError, KeyError):
            from shanty.launch.kubernetes.shortfall import described

            nodes = self.cluster.call("GET", "/api/v1/nodes")["items"]
            others = self.cluster.call("GET", "/api/v1/pods")["items"]
            why = described(pod, nodes, others) or why
        why = f"{name}: {why}"
        return LaunchError(what, why, pod_trouble.fix_of(why, pod))

    def _with_output(self, trouble: pod_trouble.Trouble) -> pod_trouble.Trouble:
        """The end of an init container with its last lines, where we may read its log."""
        if not trouble.container:
            return trouble
        path = f"{self.cluster.path('pods', trouble.pod)}/log?container={trouble.container}"
        said = ""
        with contextlib.suppress(ApiError, UnreachableError):
            said = b"".join(self.cluster.stream(f"{path}&tailLines=5")).decode(errors="replace")
        lines = " / ".join(filter(None, map(str.strip, said.splitlines())))
        return replace(trouble, why=f"{trouble.why}: {lines}") if lines else trouble

    def _told_by_pods(self, hosts: list[Host], error: ShantyError) -> ShantyError:
        """Why the pods could not be prepared, if Kubernetes says so."""
        names = [host.name for host in hosts]
        ended = self.pods.wait_for(lambda: self.pods.end_of(*names), _WORD)
        return error if ended is None else ended.error

    def _warn(self, text: str) -> None:
        print(f"shanty: {text}", file=sys.stderr, flush=True)
        self._event("warning", text=text)

    # --------------------------------------------------------------------------- following

    def _follow(self, hosts: Sequence[Host], clients: Sequence[RpcClient] = ()) -> None:
        """Copy the run's files here until it has ended."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mirror = RunMirror(self.run, hosts, clients, self._amended).start()
        lead = hosts[0].name
        while not read_status(self.run).state.final:
            self.pods.wait_for(lambda: None, _LOOK)
            self._tell_if_away(self.pods)
            if self._is_to_stop:  # and its controller could not be asked
                conclude(self.run, State.STOPPED, None, STOPPED_EXIT)
                break
            trouble = self.pods.end_of(lead)
            if trouble is not None:
                # what its controller had said before may still be on its way
                self.pods.wait_for(lambda: read_status(self.run).state.final, _WORD)
                mirror.conclude(trouble.failure, State.FAILED)
        mirror.close()

    def _tell_if_away(self, pods: RunPods) -> None:
        """Write down since when the cluster does not answer, or does not let us look."""
        since, error = pods.silent_since, pods.error
        if error is not None:
            write_away(self.run, error.what, error.fix)
        elif since is not None and time.monotonic() > since + _AWAY:
            what = f"the cluster {self.cluster.context} has not answered"
            write_away(self.run, what, "the run may go on there")
        else:
            (self.run.path / AWAY).unlink(missing_ok=True)

    def _amended(self, status: Status) -> Status:
        """The last status of a run, with what Kubernetes says of the pod in which it failed."""
        lead = self.pods.end_of(self.site.hosts[0].name)
        if status.state is State.STOPPED and lead is not None:
            code = LaunchError.exit_code
            return replace(status, state=State.FAILED, failure=lead.failure, exit_code=code)
        failure = status.failure
        if failure is None or failure.host is None or status.state is not State.FAILED:
            return status
        killed = failure.rank is None or failure.signal == "SIGKILL"
        name = failure.host

        trouble = self.pods.wait_for(lambda: self.pods.end_of(name), _WORD) if killed else None
        if trouble is None and failure.rank is None:
            node = (self.pods.pods.get(name) or {}).get("spec", {}).get("nodeName")
            see = [f"check its node (kubectl describe node {node})"] if node else []
            fix = "; ".join(filter(None, [*see, failure.fix]))
            return replace(status, failure=replace(failure, fix=fix))
        if trouble is None:
            return status
        better = replace(failure, what=trouble.what, why=trouble.why, fix=trouble.fix)
        better = replace(better, cause=trouble.cause or failure.cause)
        return replace(status, failure=better)

    # ------------------------------------------------------------------------- cleaning up

    def _clean_up(self) -> None:
        """Delete the run's objects; what they own goes with the Job."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.pods.close()
        if self.options.keep or not self.at.tried:
            return
        until = time.monotonic() + _DELETING
        while True:
            try:
                self._delete()
                break
            except UnreachableError:
                if time.monotonic() > until:
                    return
                time.sleep(_ASKED)
            except ApiError as error:
                print(f"shanty: {error}", file=sys.stderr, flush=True)
                return
        self._note(self.at._replace(deleted=True))


def write_away(run: RunDir, what: str, fix: str, pause: float = 0.0) -> None:
    """Note since when a run is out of reach; the next try is after `pause` seconds."""
    before = read_json(run.path / AWAY) or {}
    since = before.get("since")
    since = since if isinstance(since, float) else time.time()
    again = time.time() + pause if pause else 0.0
    write_json(run.path / AWAY, {"since": since, "what": what, "fix": fix, "again": again})


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stop


def log_of(run: RunDir) -> Path:
    """The log of the process that watches a run: its warnings, and its own failure."""
    return run.logs / "watcher.log"


def is_watched(run: RunDir) -> bool:
    """True while a process watches the run."""
    return is_alive(read_json(run.path / RECORD) or {}, "watcher")


def use_kubeconfig(run: RunDir) -> None:
    """Take the kubeconfig that the run was begun with, whatever the shell says by now."""
    given = ClusterSite.of(site.read(run) or Site()).kubeconfig
    if given:
        os.environ["KUBECONFIG"] = given


def main(argv: list[str]) -> int:
    """Watch the run in the directory `argv[0]`, unless another process does."""
    run = RunDir(Path(argv[0]))
    if lock.take(run.path / _LOCK) is None:
        return 0
    signal.signal(signal.SIGTERM, _stop)  # before anybody knows whom to send it to
    try:
        write_json(run.path / RECORD, agents_record(watcher=os.getpid()))
        use_kubeconfig(run)
        try:
            watcher = Watcher(run)
        except (PrepareError, KeyError, ValueError, TypeError) as error:
            what, fix = f"{run.path} is damaged", "see its files"
            if isinstance(error, PrepareError):
                what, fix = error.what, error.fix
            print(f"shanty: {what}: {error}", file=sys.stderr, flush=True)
            write_away(run, what, fix, _AGAIN)
            return 70
        watcher.see_through()
    except Stop:
        return 0  # the next one finds that somebody wants it ended
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
