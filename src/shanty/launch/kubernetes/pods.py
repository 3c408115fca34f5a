"""The pods of a run as the API server has them: one watch, begun again whenever it ends.

Clients of Kubernetes have to list, watch from the list's version, and list again where that is too
old (HTTP 410). https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from shanty.launch.kubernetes import objects
from shanty.launch.kubernetes.cluster import (
    ApiError,
    Cluster,
    Object,
    UnreachableError,
    selector_of,
)
from shanty.launch.kubernetes.pod_trouble import Trouble, deleted, trouble

_PAUSE, _LONGEST = 0.5, 10.0  # seconds between two tries to reach the server, growing
_GONE = 410  # of HTTP: the version is too old
R = TypeVar("R")


class RunPods:
    """The pods of one run; `start` the watch, then look.

    `silent_since` is when the API server last answered, None while it answers; `error` is what it
    refuses, if it does.
    """

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster = cluster
        self._run = run
        self._selector = selector_of({objects.LABEL: run})
        self._pods: dict[str, Object] = {}
        self._troubles: dict[str, Trouble] = {}
        self._changed = threading.Condition()
        self._listed = False
        self._ended = False
        self.silent_since: float | None = None
        self.error: ApiError | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    @property
    def job_path(self) -> str:
        """The path of the Job that owns the pods."""
        return self._cluster.path("jobs", objects.name_of(self._run), objects.BATCH)

    def make(self, job: Object) -> None:
        """Make the Job, and what it owns."""
        owner = self._cluster.create(job)
        for one in objects.owned_of(self._run, owner):
            self._cluster.create(one)

    def delete(self) -> None:
        """Delete the Job, and with it all that it owns."""
        self._cluster.delete(self.job_path)

    def start(self) -> RunPods:
        """Begin to watch."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Watch no more; the thread ends with the process at the latest."""
        self._ended = True

    @property
    def pods(self) -> dict[str, Object]:
        """The pods that there are, by name."""
        with self._changed:
            return dict(self._pods)

    def trouble_of(self, name: str) -> Trouble | None:
        """What has happened to a pod of the run, also where it is gone."""
        with self._changed:
            if self._listed and name not in self._pods and name not in self._troubles:
                return deleted(name)  # before we looked
            return self._troubles.get(name)

    def end_of(self, *names: str) -> Trouble | None:
        """What has ended one of these pods; None while none of them has ended."""
        troubles = map(self.trouble_of, names)
        return next((each for each in troubles if each is not None and each.final), None)

    def wait_for(self, found: Callable[[], R | None], patience: float) -> R | None:
        """Return what `found` returns after a change, once that is true; None in the end."""
        with self._changed:
            return self._changed.wait_for(found, patience) or None

    def _work(self) -> None:
        pause = _PAUSE
        while not self._ended:
            try:
                version = self._list()
                self.silent_since, self.error, pause = None, None, _PAUSE
                self._watch(version)
            except ApiError as error:
                if error.status == _GONE:
                    continue
                self.error = error
            except UnreachableError:
                self.silent_since = self.silent_since or time.monotonic()
            except (ValueError, KeyError, TypeError, AttributeError):  # no API server's answer
                self.silent_since = self.silent_since or time.monotonic()
                traceback.print_exc()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _list(self) -> str:
        found = self._cluster.call(
            "GET", f"{self._cluster.path('pods')}?labelSelector={self._selector}", retries=1
        )
        names = {pod["metadata"]["name"] for pod in found["items"]}
        for name in set(self.pods) - names:
            self._gone(name)
        for pod in found["items"]:
            self._take(pod)
        self._listed = True
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        while not self._ended:
            began = time.monotonic()
            for kind, pod in self._cluster.watch(
                self._cluster.path("pods"), self._selector, version
            ):
                version = pod["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._take(pod)
                    self._gone(pod["metadata"]["name"])
                elif kind in ("ADDED", "MODIFIED"):
                    self._take(pod)
            if time.monotonic() < began + _PAUSE:  # a server that ends them all at once
                time.sleep(_PAUSE)

    def _take(self, pod: Object) -> None:
        name, found = pod["metadata"]["name"], trouble(pod)
        with self._changed:
            self._pods[name] = pod
            if found is not None:  # the first word says most, but for a mere deletion
                known = self._troubles.get(name)
                if known is not None and not known.final and found.what == known.what:
                    found = replace(found, why=known.why, fix=known.fix)  # it said more
                if known is None or not known.final or known == deleted(name):
                    self._troubles[name] = found
            elif name in self._troubles and not self._troubles[name].final:
                del self._troubles[name]
            self._changed.notify_all()

    def _gone(self, name: str) -> None:
        with self._changed:
            pod = self._pods.pop(name, None)
            node = ((pod or {}).get("spec") or {}).get("nodeName")
            place = f" on node {node}" if node else ""
            known = self._troubles.get(name)
            if known is None or not known.final:
                self._troubles[name] = deleted(name, place)
            self._changed.notify_all()
