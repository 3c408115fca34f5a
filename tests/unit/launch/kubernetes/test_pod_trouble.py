"""What Kubernetes says of pods, in words with the pod's name and a cure."""

from __future__ import annotations

from typing import Any

import pytest

from shanty.launch.kubernetes import pod_trouble


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", **metadata},
        "spec": {"nodeName": "n"},
        "status": status,
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod({"containerStatuses": [{"name": "run", "image": "i:1", "state": state}]})


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    status = {
        "phase": "Failed",
        "containerStatuses": [{"name": "run", "image": "i:1", "state": state}],
    }
    return pod(status)  # fmt: skip


def init(state: dict[str, Any], phase: str = "Pending") -> dict[str, Any]:
    """A pod whose init container is in that state."""
    first = [{"name": "first", "image": "f:1", "state": state}]
    found = waiting("PodInitializing")
    found["status"] |= {"phase": phase, "initContainerStatuses": first}
    return found


def beside(state: dict[str, Any]) -> dict[str, Any]:
    """A pod whose second container is in that state while that of the run runs."""
    found = running()
    phase = "Pending" if "waiting" in state else "Running"
    found["status"] |= {"phase": phase}
    found["status"]["containerStatuses"].append({"name": "side", "image": "s:1", "state": state})
    return found


def running(**metadata: Any) -> dict[str, Any]:
    state = {"running": {"startedAt": "now"}}
    status = {"podIP": "10.0.0.1", "containerStatuses": [{"name": "run", "state": state}]}
    return pod({"phase": "Running", **status}, **metadata)


@pytest.mark.parametrize(
    ("seen", "said", "cure"),
    [
        (waiting("ErrImagePull", "i:1: not found"), "the image i:1 cannot be pulled", "its tag"),
        (waiting("ImagePullBackOff"), "cannot be pulled for pod p on node n", "the registry"),
        (waiting("ErrImagePull", "unauthorized"), "cannot be pulled", "--pull-secret"),
        (waiting("InvalidImageName"), "invalid image name: i:1", "--image"),
        (waiting("CreateContainerConfigError", "has runAsNonRoot and image will run as root"),
         "cannot be configured", "--uid"),
        (ended(137, "OOMKilled"), "pod p on node n ran out of memory", "--memory-per-rank"),
        (ended(127), "the image i:1 has no Python", "python:3.12-slim"),
        (ended(1), "pod p on node n has ended", "run again"),
        (pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}), "was evicted",
         "--memory-per-rank"),
        (pod({"phase": "Failed", "reason": "Evicted",
              "message": 'Usage of EmptyDir volume "d" exceeds the limit "20Mi".'}), "was evicted",
         "sizeLimit"),
        (init({"terminated": {"exitCode": 3, "message": "no data"}}, phase="Failed"),
         "its init container first failed", "kubectl logs POD -c first"),
        (init({"waiting": {"reason": "ImagePullBackOff"}}), "the image f:1 cannot be pulled", ""),
        (init({"waiting": {"reason": "CreateContainerConfigError", "message": "x"}}),
         "its init container first cannot be configured", "--k8s-patch"),
        (beside({"waiting": {"reason": "CreateContainerConfigError", "message": "x"}}),
         "its container side cannot be configured", "--k8s-patch"),
        (pod({"phase": "Failed", "reason": "NodeLost"}), "is lost", "kubectl get nodes"),
        (pod({"phase": "Failed", "reason": "New"}), "failed (New)", ""),
        (pod({"conditions": [{"type": "DisruptionTarget", "status": "True",
                              "reason": "PreemptionByScheduler"}]}), "was preempted", "--retries"),
        (running(deletionTimestamp="now"), "pod p on node n was deleted", "run again"),
    ],
)  # fmt: skip
def test_troubles(seen: dict[str, Any], said: str, cure: str) -> None:
    found = pod_trouble.trouble(seen)
    assert found is not None
    assert said in found.what
    assert cure in found.fix


def test_no_trouble() -> None:
    assert pod_trouble.trouble(running()) is None
    assert pod_trouble.is_running(running())
    assert pod_trouble.trouble(waiting("ContainerCreating")) is None
    assert not pod_trouble.is_running(waiting("ContainerCreating"))
    assert not pod_trouble.is_running(running(deletionTimestamp="now"))


def test_a_pod_runs_when_all_its_containers_do() -> None:
    starts = beside({"waiting": {"reason": "ContainerCreating"}})
    assert not pod_trouble.is_running(starts) and pod_trouble.trouble(starts) is None
    ended = beside({"terminated": {"exitCode": 1}})  # the ranks may not need it any more
    assert pod_trouble.is_running(ended) and pod_trouble.trouble(ended) is None


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ('secret "keys" not found', "A, envFrom"),
        ("couldn't find key api in Secret team/keys", "A"),
        ('configmap "keys" not found', "A, envFrom"),
        ("couldn't find key other in ConfigMap team/keys", ""),
    ],
)
def test_what_needs_a_secret_that_is_missing(message: str, needed: str) -> None:
    found = waiting("CreateContainerConfigError", message)
    origin = {"secretKeyRef": {"name": "keys", "key": "api"}}
    env = [{"name": "A", "valueFrom": origin}, {"name": "B", "value": "1"}]
    sources = [{"configMapRef": {"name": "other"}}, {"secretRef": {"name": "keys"}}]
    found["spec"]["containers"] = [{"name": "run", "env": env, "envFrom": sources}]
    said = pod_trouble.trouble(found)
    assert said is not None and said.final and "create it" in said.fix
    assert said.why == message + (f"; needed by {needed}" if needed else "")


def test_a_first_failure_to_pull_may_pass() -> None:
    first = pod_trouble.trouble(waiting("ErrImagePull", "dial tcp: i/o timeout"))
    later = pod_trouble.trouble(waiting("ImagePullBackOff", "Back-off pulling image"))
    assert first is not None and not first.final
    assert later is not None and later.final and later.what == first.what


@pytest.mark.parametrize(
    ("message", "said", "cure"),
    [
        ('pods "p" is forbidden: exceeded quota: small', "quota is too small", "larger quota"),
        ('violates PodSecurity "restricted:latest": runAsNonRoot != true', "rules of security",
         "--uid"),
        ('error looking up service account team/x: serviceaccount "x" not found', "does not let",
         "--service-account"),
        ("no PriorityClass with name x was found", "does not let", "--priority-class"),
        ("failed quota: q: must specify limits.cpu", "does not let", "--cpus-per-rank"),
        ('quotas "q": the object has been modified', "does not let", ""),
    ],
)  # fmt: skip
def test_refusals(message: str, said: str, cure: str) -> None:
    event = {"reason": "FailedCreate", "message": f"Error creating: {message}"}
    found = pod_trouble.refusal([{"reason": "Other"}, event])
    assert found is not None
    assert said in found.what
    assert found.why == message
    assert cure in found.fix
    assert found.final == ("quota: small" not in message and "modified" not in message)
    assert pod_trouble.refusal([{"reason": "SuccessfulCreate"}]) is None


EVENTS = [
    {"type": "Warning", "reason": "FailedMount", "message": 'secret "nobody" not found'},
    {"type": "Warning", "reason": "FailedMount",
     "message": 'MountVolume.SetUp failed for volume "shanty-start" : configmap not found'},
    {"type": "Normal", "reason": "Pulling", "message": "Pulling image"},
]  # fmt: skip


def test_what_a_pod_waits_for() -> None:
    said = "0/2 nodes are available: 2 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    assert pod_trouble.waits(pod({"conditions": [condition]})) == f"no node for it: {said}"
    assert "gets its image" in pod_trouble.waits(waiting("ContainerCreating"))
    assert pod_trouble.waits({"metadata": {"name": "p"}, "spec": {}}) == "not scheduled yet"
    warned = pod_trouble.warning(EVENTS)
    assert warned == 'FailedMount: secret "nobody" not found'
    assert pod_trouble.waits(waiting("ContainerCreating"), warned) == f"node n: {warned}"
    assert pod_trouble.warning(EVENTS[1:]) == ""
    assert pod_trouble.waits(init({"running": {}})) == "its init container first: runs"
    assert warned in pod_trouble.waits(init({"waiting": {"reason": "PodInitializing"}}), warned)


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("2 Insufficient cpu", "--cpus-per-rank"),
        ("2 node(s) didn't match node selector", "--node-selector"),
        ('persistentvolumeclaim "x" not found', "--mount"),
        ("1 node(s) had taint {a: b}, that the pod didn't tolerate", "--toleration"),
        ("1 Insufficient cpu, 1 node(s) had taint {node.kubernetes.io/unreachable: }", "is down"),
        ("1 Insufficient cpu, 1 node(s) were unschedulable", "kubectl cordon"),
    ],
)
def test_cures_for_no_node(message: str, cure: str) -> None:
    assert cure in pod_trouble.fix_of(message)


def test_a_claim_without_a_volume() -> None:
    its = [{"name": "d"}, {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    said = "0/2 nodes are available: 2 pod has unbound immediate PersistentVolumeClaims."
    found = pod_trouble.fix_of(said, {"spec": {"volumes": its}})
    assert "kubectl describe pvc data" in found
