"""Explains what Kubernetes says of a run's pods: why a pod does not start, or has ended.

Pure. The objects are as the API has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shanty.launch.kubernetes.objects import NO_PYTHON, START_VOLUME
from shanty.launch.kubernetes.pod_exec import CONTAINER
from shanty.runtime.errors import LaunchError
from shanty.runtime.spec import HOST, MEMORY, PREEMPTED, Failure

Object = Mapping[str, Any]

_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_NO_IMAGE = re.compile(r"not found|manifest unknown|does not exist", re.IGNORECASE)
_NO_LOGIN = re.compile(r"unauthorized|denied|forbidden|authentication|no basic auth", re.IGNORECASE)
_CORRECT = "correct what the message names in the manifest or --k8s-patch"
# A reason that a container waits for, and what it means; `{image}` and `{container}` are put in.
_WAITING = {
    "InvalidImageName": ("invalid image name: {image}", "see --image"),
    "ErrImageNeverPull": (
        "the node does not have the image {image}, and may not pull it",
        "load the image into the nodes, or set another imagePullPolicy by --k8s-patch",
    ),
    "CreateContainerConfigError": ("its {container} cannot be configured", _CORRECT),
    "CreateContainerError": ("its {container} cannot be made", _CORRECT),
    "RunContainerError": ("its {container} cannot be started", _CORRECT),
}
# A Secret or ConfigMap that is missing, or lacks a key: its name, the key.
_MISSING = re.compile(
    r"(?:secret|configmap) \"(?P<name>[^\"]+)\" not found"
    r"|find key (?P<key>\S+) in (?:secret|configmap) [^/ ]*/(?P<of>\S+)",
    re.IGNORECASE,
)
_PREPARED = ("ContainerCreating", "PodInitializing")  # what pods wait for at their start
_LIMIT = re.compile(r"exceeds the (total )?limit|ephemeral.storage", re.IGNORECASE)
# Why a pod is ended: by the reason that Kubernetes gives, what it means, what to do, and the cause.
_PREEMPTION = (
    "was preempted: a pod with a higher priority took its place",
    "run again, with --retries or another --priority-class",
    PREEMPTED,
)
_SHUT_DOWN = ("was ended: its node was shut down", "run again", HOST)
_ENDED = {
    "Evicted": (
        "was evicted",
        "its node ran out of what the message names: ask for it (--memory-per-rank), so that the "
        "pod goes to a node that has it",
        "",
    ),
    "Preempted": _PREEMPTION,
    "PreemptionByScheduler": _PREEMPTION,
    "EvictionByEvictionAPI": ("was evicted: its node is being drained", "run again", HOST),
    "DeletionByTaintManager": (
        "was evicted: its node has a taint that it does not tolerate",
        "run again, or --toleration",
        HOST,
    ),
    "TerminationByKubelet": ("was ended by its node", "see its events", ""),
    "Shutdown": _SHUT_DOWN,
    "NodeShutdown": _SHUT_DOWN,
    "Terminated": _SHUT_DOWN,
    "NodeLost": (
        "is lost: its node does not answer any more",
        "check the node (kubectl get nodes); run again",
        HOST,
    ),
    "DeadlineExceeded": (
        "was ended: it reached the cluster's time limit",
        "give the run a longer --time-limit",
        "",
    ),
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod cannot start, or has ended; `final` where it will not get better by itself.

    `cause` is that of `Failure`; `container` is the init container that failed.
    """

    pod: str
    what: str
    why: str = ""
    fix: str = ""
    final: bool = True
    cause: str = ""
    container: str = ""

    @property
    def error(self) -> LaunchError:
        """The error for a run that cannot start."""
        return LaunchError(self.what, self.why, self.fix)

    @property
    def failure(self) -> Failure:
        """The failure of a run that was in the pod."""
        return Failure(self.what, self.why, self.fix, host=self.pod, cause=self.cause)


def trouble(pod: Object) -> Trouble | None:
    """What is wrong with a pod; None where nothing is."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    place = f" on node {pod['spec']['nodeName']}" if pod.get("spec", {}).get("nodeName") else ""
    for condition in status.get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return _ended(name, place, condition.get("reason", ""), condition.get("message", ""))
    if status.get("reason") in _ENDED:
        return _ended(name, place, status["reason"], status.get("message", ""))
    if status.get("phase") == "Failed" and status.get("reason"):
        message = status.get("message", "")
        return Trouble(name, f"pod {name}{place} failed ({status['reason']})", message)
    every, first = status.get("containerStatuses", ()), status.get("initContainerStatuses", ())
    for container in (one for one in every if one["name"] == CONTAINER):
        found = _of_container(pod, name, place, container)
        if found is not None:
            return found
    others = [one for one in every if one["name"] != CONTAINER]
    for kind, each in (("init container", first), ("container", others)):
        for container in each:
            found = _of_waiting(pod, name, place, container, f"{kind} {container['name']}")
            if found is not None:
                return found
    if pod["metadata"].get("deletionTimestamp"):
        return deleted(name, place)
    for container in first:
        ended, its = container.get("state", {}).get("terminated") or {}, container["name"]
        if ended.get("exitCode") and status.get("phase") == "Failed":
            why = f"it ended with {ended['exitCode']}"
            why += " (OOMKilled)" if ended.get("reason") == "OOMKilled" else ""
            why = ": ".join(filter(None, [why, str(ended.get("message") or "").strip()]))
            fix = "correct it in the manifest or --k8s-patch; for its output, run again with "
            fix += f"--keep and read kubectl logs POD -c {its}"
            what = f"pod {name}{place}: its init container {its} failed"
            return Trouble(name, what, why, fix, container=its)
    if status.get("phase") in ("Failed", "Succeeded"):
        return Trouble(name, f"pod {name}{place} has ended", "nothing of the run was in it")
    return None


def deleted(name: str, place: str = "") -> Trouble:
    """The end of a pod that was deleted."""
    return Trouble(
        name,
        f"pod {name}{place} was deleted",
        "somebody deleted it or its Job, or drained its node (kubectl drain), or the node was down",
        "run again",
        cause=HOST,
    )


def _ended(name: str, place: str, reason: str, message: str) -> Trouble:
    what, fix, cause = _ENDED.get(reason, (f"was ended ({reason})", "", ""))
    if reason == "Evicted" and _LIMIT.search(message):
        fix = (
            "write less, or raise the limit in the manifest or --k8s-patch (a volume's sizeLimit, "
        )
        fix += "a container's ephemeral-storage)"
    return Trouble(name, f"pod {name}{place} {what}", message, fix, cause=cause)


def _of_waiting(
    pod: Object, name: str, place: str, container: Object, title: str
) -> Trouble | None:
    """Why a container waits, if it does so for something that is wrong."""
    waiting, image = container.get("state", {}).get("waiting") or {}, container.get("image", "")
    reason, message = waiting.get("reason", ""), str(waiting.get("message", ""))
    if reason in _PULLS:
        return _pull(name, place, image, reason, message)
    if reason in _WAITING:
        what, fix = _WAITING[reason]
        if "runAsNonRoot" in message:
            fix = "give the ranks another user: --uid 1000"
        if found := _MISSING.search(message):
            users = _users_of(pod, found["name"] or found["of"], found["key"])
            message += f"; needed by {users}" if users else ""
            fix = "create it in the run's namespace, correct its name in the manifest or "
            fix += "--k8s-patch, or mark it as optional there"
        what = what.format(image=image, container=title)
        return Trouble(name, f"pod {name}{place}: {what}", message, fix)
    return None


def _users_of(pod: Object, name: str, key: str | None) -> str:
    """The variables of a pod that a Secret or ConfigMap, or a key of it, gives."""
    spec, names = pod.get("spec", {}), []
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        for one in container.get("env") or ():
            origin = one.get("valueFrom") or {}
            its = origin.get("secretKeyRef") or origin.get("configMapKeyRef") or {}
            if its.get("name") == name and key in (None, its.get("key")):
                names.append(one["name"])
        for one in container.get("envFrom") or () if key is None else ():
            if (one.get("secretRef") or one.get("configMapRef") or {}).get("name") == name:
                names.append("envFrom")
    return ", ".join(dict.fromkeys(names))


def _of_container(pod: Object, name: str, place: str, container: Object) -> Trouble | None:
    found = _of_waiting(pod, name, place, container, "container")
    if found is not None:
        return found
    image = container.get("image", "")
    ended = container.get("state", {}).get("terminated") or {}
    if ended.get("reason") == "OOMKilled":
        return Trouble(
            name,
            f"pod {name}{place} ran out of memory (OOMKilled)",
            "it took more than its limit",
            "give it more: --memory-per-rank; or make the batches smaller",
            cause=MEMORY,
        )
    if ended.get("exitCode") == NO_PYTHON:
        return Trouble(
            name,
            f"the image {image} has no Python of version 3.9 or newer",
            f"pod {name}{place} found none",
            "take an image that has it, as python:3.12-slim",
        )
    if ended.get("exitCode") in (128, 126, 127) or ended.get("reason") in (
        "StartError",
        "ContainerCannotRun",
    ):
        message = str(ended.get("message") or f"exit code {ended.get('exitCode')}")
        fix = "the image needs /bin/sh"
        return Trouble(name, f"pod {name}{place}: its container cannot be started", message, fix)
    if ended:
        message = f"its first process ended with {ended.get('exitCode')}"
        return Trouble(name, f"pod {name}{place} has ended", message, "run again")
    return None


def _pull(name: str, place: str, image: str, reason: str, message: str) -> Trouble:
    what = f"the image {image} cannot be pulled for pod {name}{place}"
    if _NO_LOGIN.search(message):
        fix = "look at its name; a private image needs --pull-secret NAME"
    elif _NO_IMAGE.search(message):
        fix = "look at its name and its tag"
    else:
        fix = "see whether the node reaches the registry"
    certain = bool(_NO_LOGIN.search(message) or _NO_IMAGE.search(message))
    return Trouble(name, what, message, fix, certain or reason == "ImagePullBackOff")


def refusal(events: Sequence[Object]) -> Trouble | None:
    """Why the cluster makes no pods for a Job, by the Job's events: a quota, admission.

    It is final where no other try of the cluster can succeed.
    """
    for event in reversed(events):
        if event.get("reason") != "FailedCreate":
            continue
        message = str(event.get("message", ""))
        what, fix, final = "the cluster does not let the run's pods in", "", True
        if "exceeded quota" in message:
            what = "the namespace's quota is too small for the run's pods"
            fix = "wait until others have ended, ask for less, or for a larger quota"
            final = False  # pods that are ending still count
        elif "PodSecurity" in message or "security context constraint" in message:
            what = "the namespace's rules of security do not let the run's pods in"
            fix = "as root, or without a user: give --uid 1000; the rest by --k8s-patch"
            if "runAsNonRoot" not in message:
                fix = "see what it names; --k8s-patch changes it"
        elif "serviceaccount" in message.lower().replace(" ", ""):
            fix = "see --service-account"
        elif "PriorityClass" in message:
            fix = "see --priority-class, and kubectl get priorityclass"
        elif "must specify" in message or "limits" in message:
            fix = "say what the ranks need: --cpus-per-rank, --memory-per-rank"
        else:
            final = False  # a webhook that is away, a request that met another one
        return Trouble("", what, message.partition("Error creating: ")[2] or message, fix, final)
    return None


def unschedulable(pod: Object) -> str:
    """The scheduler's message on a pod without a node; "" where there is none."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason", ""))
    return ""


def fix_of(message: str, pod: Object | None = None) -> str:
    """What to do where the scheduler finds no node for a pod, by its words."""
    if "persistentvolumeclaim" in message.lower():
        volumes = (pod or {}).get("spec", {}).get("volumes", ())
        claims = [one["persistentVolumeClaim"]["claimName"] for one in volumes
                  if one.get("persistentVolumeClaim")]  # fmt: skip
        if "unbound" in message and claims:
            return f"a claim has no volume yet: kubectl describe pvc {' '.join(claims)} says why"
        return "check --mount pvc:NAME:… or the manifest, and kubectl get pvc"
    if "node selector" in message or "node affinity" in message:
        return "see --node-selector, and the nodes' labels"
    if re.search(r"node\.kubernetes\.io/(unreachable|not-ready)|node\(s\) were not ready", message):
        return "a node is down, see kubectl get nodes; until it is back, ask for less"
    if "unschedulable" in message:
        return "a node is closed to new pods (kubectl cordon), see kubectl get nodes"
    if "taint" in message and "Insufficient" not in message:
        return "the nodes are reserved: --toleration says that the pods may go there"
    return (
        "ask for less (--cpus-per-rank, --memory-per-rank, --nodes), wait until others have ended, "
        "or longer: --schedule-timeout"
    )


def warning(events: Sequence[Object]) -> str:
    """The last warning among a pod's events, but for those of its first moments."""
    for event in reversed(events):
        text = str(event.get("message", ""))
        ours = f'volume "{START_VOLUME}"' in text  # it is made after the Job
        if event.get("type") == "Warning" and not ours:
            return f"{event.get('reason', '')}: {text}"
    return ""


def waits(pod: Object, warned: str = "") -> str:
    """What a pod that does not run yet waits for, for people; `warned`: a warning about it."""
    said = unschedulable(pod)
    if said:
        return f"no node for it: {said}"
    if not pod.get("spec", {}).get("nodeName"):
        return "not scheduled yet"
    for container in pod.get("status", {}).get("initContainerStatuses", ()):
        state = container.get("state", {})
        reason = (state.get("waiting") or {}).get("reason", "")
        if "running" in state and not container.get("started"):
            reason = "runs"
        if reason and reason not in _PREPARED:
            return f"its init container {container['name']}: {reason}"
    for container in pod.get("status", {}).get("containerStatuses", ()):
        reason = (container.get("state", {}).get("waiting") or {}).get("reason", "")
        if reason and reason not in _PREPARED:
            return str(reason)
    node = pod["spec"]["nodeName"]
    return f"node {node}: {warned}" if warned else f"node {node} gets its image and starts it"


def is_running(pod: Object) -> bool:
    """True for a pod whose containers have all started, and that nobody deletes."""
    status = pod.get("status", {})
    mine = [one for one in status.get("containerStatuses", ()) if one["name"] == CONTAINER]
    runs = bool(mine) and "running" in mine[0].get("state", {}) and status.get("phase") == "Running"
    return runs and bool(status.get("podIP")) and not pod["metadata"].get("deletionTimestamp")
