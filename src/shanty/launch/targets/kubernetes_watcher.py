"""The process that sees one run on Kubernetes through: `-m …targets.kubernetes_watcher RUN_DIR`.

It goes on where its terminal ends, as a run's controller does. It makes the run's objects, waits
for the pods, prepares them as hosts are prepared, starts the run on the first of them, copies its
files here, and deletes the objects at the end. What it has come to is in the run's `site.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from shanty.launch.cluster.run_mirror import RunMirror
from shanty.launch.host import Host
from shanty.launch.kubernetes import lifecycle, objects, words
from shanty.launch.kubernetes.cluster import ApiError, UnreachableError
from shanty.launch.kubernetes.pod_exec import cluster
from shanty.launch.kubernetes.pods import RunPods
from shanty.launch.targets.kubernetes_operator import OperatorRun
from shanty.launch.targets.kubernetes_start import start_in
from shanty.runtime.agent.control import agents_record, conclude, is_alive, read_status
from shanty.runtime.errors import (
    STOPPED_EXIT,
    LaunchError,
    LostError,
    PrepareError,
    ShantyError,
)
from shanty.runtime.rundir import RunDir, append_line, read_json, write_json
from shanty.runtime.spec import Failure, JobSpec, State, Status

RECORD = "watcher.json"  # who watches a run
AWAY = "cluster.json"  # since when the cluster has not answered, and what it says
ASKED_TO_STOP = "stop"  # is there where somebody wants the run ended, whoever sees it through
LOG = "watcher.jsonl"  # how far it came, and when: `events.jsonl` is a copy of the controller's
_LOCK = "watcher.lock"
_LOOK = 0.2  # seconds between two looks at a run
_ASKED = 2.0  # seconds between two questions why pods are missing
_WORD = 3.0  # seconds that Kubernetes has to say what became of a pod
_DELETING = 600.0  # seconds for the objects to be deleted, while the cluster does not answer
_AWAY = 5.0  # seconds without an answer after which it is said
_PERSISTS = 20.0  # seconds for which the cluster refuses pods until that counts: others may end
_SUSPENDED = "suspended"  # a Job that a queue holds back
_AGAIN = 30.0  # seconds after a failure of ours until a run is watched again


class Stop(BaseException):
    """Somebody stops the run while it is being started."""


class Watcher:
    """Sees one run through."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.site: dict[str, Any] = read_json(run.site) or {}
        self.job = JobSpec.from_json(read_json(run.job) or {})
        self.cluster = cluster(self.site["place"])
        self.pods = RunPods(self.cluster, run.id)
        self._saying = threading.Lock()
        self._refused_since: float | None = None  # the run's pods
        self._delete: Callable[[], None] = self._delete_job

    def see_through(self) -> None:
        """Do all that is to be done for the run from where it stands."""
        try:
            if self._is_to_stop and not self.is_on:
                raise Stop
            if self.job.operator:
                self._by_operator()
            elif self.site.get("hosts"):
                self._follow([Host(**one) for one in self.site["hosts"]], None)
            elif self.site.get("tried"):
                self._end(LostError("what was starting the run was killed", fix="run again"))
            else:
                self._begin()
        except Stop:
            if not self.is_on or self._is_to_stop:
                conclude(self.run, State.STOPPED, None, STOPPED_EXIT)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is not to suffer
            if not isinstance(error, ShantyError):
                traceback.print_exc()
            if self.is_on and not isinstance(error, LaunchError):  # it is well, whatever we are
                write_away(self.run, "what sees the run through has failed", str(error), _AGAIN)
            elif isinstance(error, ShantyError):
                self._end(error)  # LaunchError is of the run itself
        if self.is_on and not read_status(self.run).state.final:
            return  # the next one goes on from here
        self._clean_up()
        what = "what sees the run through has failed"  # unless it has come to its end
        fix = f"this is a bug of shanty's: please report {log_of(self.run)}"
        conclude(self.run, State.LOST, Failure(what, "", fix), LostError.exit_code)

    @property
    def is_on(self) -> bool:
        """True where the run goes on in the cluster without us."""
        return bool(self.site.get("hosts") or self.site.get("begun"))

    @property
    def _is_to_stop(self) -> bool:
        return (self.run.path / ASKED_TO_STOP).exists()

    def note(self, **changes: Any) -> None:
        """Write down how far it has come."""
        self.site = {**self.site, **changes}
        write_json(self.run.site, self.site)

    def say(self, stage: str, detail: str = "") -> None:
        """Say why the run has not begun yet."""
        reason = "; ".join(filter(None, [stage, detail]))
        with self._saying:
            status = read_status(self.run)
            if status.state is State.PENDING and status.reason != reason:
                write_json(self.run.status, replace(status, reason=reason).to_json())

    def _end(self, error: ShantyError) -> None:
        state = State.LOST if isinstance(error, LostError) else State.FAILED
        failure = Failure(error.what, error.why, error.fix)
        conclude(self.run, state, failure, error.exit_code)

    def _by_operator(self) -> None:
        """Have an operator make the run, or go on following one that it makes."""
        operator = OperatorRun(self.cluster, self.run, self.job, self.site["flavour"])
        signal.signal(signal.SIGTERM, _stop)
        self._delete = operator.delete
        if not self.site.get("begun"):
            self.note(tried=True, made=True)  # it may be, whatever becomes of the answer
            operator.make()
            self.note(begun=True)
        operator.follow(self._tell_if_away)

    # ---------------------------------------------------------------------------- starting

    def _begin(self) -> None:
        signal.signal(signal.SIGTERM, _stop)
        self.note(tried=True)
        self.say("its pods are being made")
        started = self._create()
        self.pods.start()
        pods = self._await_pods(started)
        self._event("pods-running", requests=self.cluster.requests)
        self.say("its pods are prepared")
        port = objects.port_of(objects.job_of(self.job, self.run.id))
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

    def _committed(self, hosts: list[dict[str, Any]]) -> None:
        """From now on the run is in its pods, and nobody stops it by ending this process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.note(hosts=hosts)

    def _create(self) -> float:
        """Make the objects; returns when that was."""
        self.note(made=True)  # it may be, whatever becomes of the answer
        lifecycle.make(self.cluster, objects.job_of(self.job, self.run.id), self.run.id)
        return time.monotonic()

    def _await_pods(self, began: float) -> list[dict[str, Any]]:
        """The pods, once all of them run; LaunchError with the reason where that will not be."""
        wanted, asked, word = objects.pods_of(self.job), 0.0, ""

        def ready() -> list[dict[str, Any]] | None:
            pods = [pod for pod in self.pods.pods.values() if words.is_running(pod)]
            return pods if len(pods) >= wanted else None

        while (found := self.pods.wait_for(ready, _LOOK)) is None:
            now, pods = time.monotonic(), self.pods.pods
            for name in pods:
                trouble = self.pods.trouble_of(name)
                if trouble is not None and trouble.final:
                    raise LaunchError(trouble.what, trouble.why, trouble.fix)
            if self.pods.error is not None:
                raise self.pods.error
            running = sum(words.is_running(pod) for pod in pods.values())
            reasons = [words.waits(pod) for pod in pods.values() if not words.is_running(pod)]
            detail = reasons[0] if reasons else ""
            if now > asked + _ASKED and len(pods) < wanted:
                asked = now
                word = self._word_on_job()
            if word == _SUSPENDED:
                began = now
                self.say(f"it is in the queue {self.job.queue or ''}".rstrip())
            else:
                self.say(
                    "its pods are being started", word or f"{running} of {wanted} run; {detail}"
                )
            if now > began + self.job.schedule_timeout:
                raise self._shortfall(running, wanted)
        chosen = sorted(found, key=lambda pod: (pod["spec"]["nodeName"], pod["metadata"]["name"]))
        return chosen[:wanted]

    def _word_on_job(self) -> str:
        """Why pods are missing, as far as the Job tells; LaunchError where they will not come."""
        try:
            job = self.cluster.call("GET", lifecycle.job_path(self.cluster, self.run.id))
            if job["spec"].get("suspend"):
                return _SUSPENDED
            selector = f"involvedObject.name%3D{objects.name_of(self.run.id)}"
            events = self.cluster.call(
                "GET", f"{self.cluster.path('events')}?fieldSelector={selector}"
            )["items"]
        except UnreachableError:
            return ""
        except ApiError as error:
            if error.status == 404:
                raise LaunchError("the run's Job was deleted", "somebody else did it") from error
            if error.status == 403:  # events may not be read; the bound is there
                return ""
            raise
        refusal = words.refusal(events)
        if refusal is None:
            return ""
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if refusal.final or now > self._refused_since + _PERSISTS:
            raise LaunchError(refusal.what, refusal.why, refusal.fix)
        return f"{refusal.what}: {refusal.why}"

    def _shortfall(self, running: int, wanted: int) -> LaunchError:
        """Why not all pods run, in numbers where the cluster lets us see its nodes."""
        waiting = [pod for pod in self.pods.pods.values() if not words.is_running(pod)]
        what = f"{running} of {wanted} pods run after {self.job.schedule_timeout:.0f} s"
        if not waiting:
            return LaunchError(what, "the cluster has not made the others", "see its Job's events")
        pod = waiting[0]
        why = words.waits(pod)
        with contextlib.suppress(ApiError, UnreachableError, ValueError, KeyError):
            from shanty.launch.kubernetes.shortfall import described

            nodes = self.cluster.call("GET", "/api/v1/nodes")["items"]
            others = self.cluster.call("GET", "/api/v1/pods")["items"]
            why = described(pod, nodes, others) or why
        why = f"{pod['metadata']['name']}: {why}"
        return LaunchError(what, why, words.cure_of(why))

    def _told_by_pods(self, hosts: list[Host], error: ShantyError) -> ShantyError:
        """The cluster's word on why pods could not be prepared, if it has one."""

        def found() -> LaunchError | None:
            for host in hosts:
                trouble = self.pods.trouble_of(host.name)
                if trouble is not None and trouble.final:
                    return LaunchError(trouble.what, trouble.why, trouble.fix)
            return None

        return self.pods.wait_for(found, _WORD) or error

    def _warn(self, text: str) -> None:
        print(f"shanty: {text}", file=sys.stderr, flush=True)
        self._event("warning", text=text)

    # --------------------------------------------------------------------------- following

    def _follow(self, hosts: list[Host], clients: list[Any] | None) -> None:
        """Copy the run's files here until it has ended."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if clients is None:
            self.pods.start()
        first, others = (clients[0], clients[1:]) if clients else (None, [])
        mirror = RunMirror(self.run, hosts, first, others, amend=self._amended).start()
        lead = hosts[0].name
        while not read_status(self.run).state.final:
            self.pods.wait_for(lambda: None, _LOOK)
            self._tell_if_away(self.pods)
            if self._is_to_stop:  # and its controller could not be told
                conclude(self.run, State.STOPPED, None, STOPPED_EXIT)
                break
            trouble = self.pods.trouble_of(lead)
            if trouble is not None and trouble.final:
                # what its controller had said before may still be on its way
                self.pods.wait_for(self._has_ended, _WORD)
                failure = Failure(
                    trouble.what, trouble.why, trouble.fix, host=lead, cause=trouble.cause
                )
                mirror.conclude(failure, State.FAILED)
        mirror.close()

    def _has_ended(self) -> bool | None:
        return read_status(self.run).state.final or None

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
        """The end of a run with what Kubernetes says of the pod in which it failed."""
        lead = self.pods.trouble_of(self.site["hosts"][0]["name"])
        if status.state is State.STOPPED and lead is not None and lead.final:
            ended = Failure(lead.what, lead.why, lead.fix, host=lead.pod, cause=lead.cause)
            code = LaunchError.exit_code
            return replace(status, state=State.FAILED, failure=ended, exit_code=code)
        failure = status.failure
        if failure is None or failure.host is None or status.state is not State.FAILED:
            return status
        killed = failure.rank is None or failure.signal == "SIGKILL"
        name = failure.host

        def found() -> words.Trouble | None:
            trouble = self.pods.trouble_of(name)
            return trouble if trouble is not None and trouble.final else None

        trouble = self.pods.wait_for(found, _WORD) if killed else None
        if trouble is None and failure.rank is None:
            node = (self.pods.pods.get(name) or {}).get("spec", {}).get("nodeName")
            see = f"see to its node: kubectl get node {node}" if node else failure.fix
            return replace(status, failure=replace(failure, fix=see))
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
        if self.job.keep or not self.site.get("tried"):
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
        self.note(deleted=True)

    def _delete_job(self) -> None:
        lifecycle.delete(self.cluster, lifecycle.job_path(self.cluster, self.run.id))


def write_away(run: RunDir, what: str, fix: str, pause: float = 0.0) -> None:
    """Note that a run is out of reach, since when first; `pause`: seconds until the next try."""
    before = read_json(run.path / AWAY) or {}
    since = before.get("since")
    since = since if isinstance(since, float) else time.time()
    again = time.time() + pause if pause else 0.0
    write_json(run.path / AWAY, {"since": since, "what": what, "fix": fix, "again": again})


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stop


def log_of(run: RunDir) -> Path:
    """What the process that sees a run through has to say: warnings, and its own failure."""
    return run.logs / "watcher.log"


def is_watched(run: RunDir) -> bool:
    """True while the process that sees the run through is there."""
    return is_alive(read_json(run.path / RECORD) or {}, "watcher")


def use_kubeconfig(run: RunDir) -> None:
    """Take the kubeconfig that the run was begun with, whatever the shell says by now."""
    given = (read_json(run.site) or {}).get("kubeconfig")
    if given:
        os.environ["KUBECONFIG"] = given


def main(argv: list[str]) -> int:
    """See the run in the directory `argv[0]` through, unless somebody does so already."""
    run = RunDir(Path(argv[0]))
    with (run.path / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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
