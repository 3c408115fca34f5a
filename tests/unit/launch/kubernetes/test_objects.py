"""What a run makes in a cluster: what a job asks for is in it, and what its user may do there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.kubernetes import objects, role
from shanty.launch.kubernetes.options import KubernetesOptions
from shanty.launch.targets.kubernetes import ranks_of
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import Command, JobSpec, Raw, Script

RUN = "20261125-120000-abcd"
JOB = JobSpec(Script("train.py"), ranks=4, image="python:3.12-slim")


def container(made: dict[str, Any]) -> dict[str, Any]:
    (found,) = made["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize(
    ("ranks", "nodes", "each", "pods", "slots"),
    [(4, None, None, 4, 1), (4, 2, None, 2, 2), (5, 2, None, 2, 3), (4, None, 2, 2, 2),
     (1, None, None, 1, 1), (5, None, 2, 3, 2)],
)  # fmt: skip
def test_how_many_pods(
    ranks: int, nodes: int | None, each: int | None, pods: int, slots: int
) -> None:
    job = JobSpec(Script("x"), ranks=ranks, nodes=nodes, ranks_per_host=each, image="i")
    assert (objects.pods_of(job), objects.slots_of(job)) == (pods, slots)
    assert pods * slots >= ranks


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (Raw(("mpirun", "-bind-to", "none", "-np", "4", "python", "x.py")), 4),
        (Raw(("/opt/mpi/bin/mpiexec", "-n", "2", "./a.out", "-n", "9")), 2),
        (Raw(("mpirun -np 3 python x.py | tee log",), True), 3),
        (Raw(("mpirun", "-n", "1", "a", ":", "-np", "3", "b")), 4),
        (Raw(("horovodrun", "-np", "2", "python", "x.py")), 2),
        (Raw(("mpirun", "python", "x.py")), None),
        (Raw(("mpirun", "python", "x.py", "-n", "5")), None),  # the script's own
        (Raw(("mpirun", "-n", "1", "a", ":", "b")), None),
        (Raw(("mpirun", "-np", "many", "a")), None),
        (Raw(("./run.sh", "-np", "4")), None),  # whatever that means there
        (Raw(("echo '",), True), None),
        (Script("x.py"), None),
    ],
)
def test_how_many_pods_a_line_is_for(command: Command, ranks: int | None) -> None:
    assert ranks_of(command) == ranks


def test_pods_are_plain_and_restricted() -> None:
    made = objects.job_of(JOB, RUN)
    pod = made["spec"]["template"]["spec"]
    assert made["kind"] == "Job"
    assert made["spec"]["parallelism"] == made["spec"]["completions"] == 4
    security = container(made)["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert "runAsUser" not in security  # so that OpenShift's own counts
    variables = {one["name"]: one["value"] for one in container(made)["env"]}
    longest = KubernetesOptions.of(JOB).schedule_timeout  # the first waits so long
    assert float(variables["SHANTY_POD_IDLE"]) > longest
    assert made["spec"]["ttlSecondsAfterFinished"] > 0
    kept = objects.job_of(replace(JOB, options={"keep": True}), RUN)
    assert "ttlSecondsAfterFinished" not in kept["spec"]


def test_what_is_asked_for() -> None:
    options = {
        "uid": 1000, "node_selector": ("disk=ssd",), "tolerations": ("gpu:NoExecute",),
        "service_account": "me", "priority_class": "high", "pull_secrets": ("login",),
        "labels": ("team=ml",), "queue": "batch",
    }  # fmt: skip
    job = JobSpec(
        Script("x"), ranks=4, nodes=2, image="i", cpus_per_rank=2, memory_per_rank=1 << 30,
        gpus_per_rank=1, mounts=(("pvc:data", "/data", "ro"),), time_limit=60.0, options=options,
    )  # fmt: skip
    made = objects.job_of(job, RUN)
    pod = made["spec"]["template"]["spec"]
    resources = container(made)["resources"]
    assert resources["limits"] == {"cpu": "4", "memory": str(2 << 30), "nvidia.com/gpu": "2"}
    assert resources["requests"] == resources["limits"]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]
    assert pod["serviceAccountName"] == "me"
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "login"}]
    assert pod["securityContext"] == {"fsGroup": 1000}
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "batch"
    assert made["spec"]["template"]["metadata"]["labels"]["team"] == "ml"
    claims = [one for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert claims[0]["persistentVolumeClaim"] == {"claimName": "data", "readOnly": True}
    assert {"name": "shanty-mount-0", "mountPath": "/data", "readOnly": True} in container(made)[
        "volumeMounts"
    ]
    assert made["spec"]["activeDeadlineSeconds"] > 60


def test_what_the_job_owns_goes_with_it() -> None:
    owner = objects.job_of(JOB, RUN)
    owner["metadata"]["uid"] = "u"
    config, secret = objects.owned_of(RUN, owner)
    for one in (config, secret):
        assert one["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert "def serve()" in config["data"]["pod.py"]
    assert "passwd" not in config["data"]
    other = objects.owned_of(RUN, owner)[1]
    assert secret["stringData"]["key"] != other["stringData"]["key"]


def test_a_patch() -> None:
    patch = {
        "spec": {"template": {"spec": {
            "hostNetwork": True,
            "containers": [
                {"name": "run", "resources": {"requests": {"cpu": None, "rdma/ib": "1"}},
                 "env": [{"name": "SHANTY_POD_PORT", "value": "4000"}],
                 "volumeMounts": [{"name": "x", "mountPath": "/x"}]},
                {"name": "beside", "image": "i"},
            ],
        }}}
    }  # fmt: skip
    job = JobSpec(Script("x"), ranks=1, image="i", options={"k8s_patch": json.dumps(patch)})
    made = objects.job_of(job, RUN)
    pod = made["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    assert [one["name"] for one in pod["containers"]] == ["run", "beside"]
    own = pod["containers"][0]
    assert own["resources"]["requests"] == {"rdma/ib": "1"}
    assert {one["mountPath"] for one in own["volumeMounts"]} >= {"/x", "/tmp", "/dev/shm"}
    assert {one["name"] for one in own["env"]} >= {"HOME", "SHANTY_HOME", "SHANTY_POD_PORT"}
    assert objects.port_of(made) == 4000
    assert objects.port_of(objects.job_of(JOB, RUN)) == 24180


@pytest.mark.parametrize("where", ["option", "pod", "container"])
def test_a_user_id_has_a_name(where: str) -> None:
    """It is in /etc/passwd, unless a patch mounts another one there."""
    options: dict[str, Any] = {"uid": 4321}
    inner: dict[str, Any] = {"name": "run"}
    pod: dict[str, Any] = {"containers": [inner]}
    if where != "option":
        own = {"runAsUser": 4321, "runAsGroup": 77}
        {"pod": pod, "container": inner}[where]["securityContext"] = own
        options = {"k8s_patch": json.dumps({"spec": {"template": {"spec": pod}}})}
    made = objects.job_of(replace(JOB, options=options), RUN)
    mounts = {one["mountPath"]: one for one in container(made)["volumeMounts"]}
    assert mounts["/etc/passwd"] == {**mounts["/etc/shanty"], "mountPath": "/etc/passwd",
                                     "subPath": "passwd"}  # fmt: skip
    made["metadata"]["uid"] = "u"
    names = objects.owned_of(RUN, made)[0]["data"]["passwd"].splitlines()
    group = 0 if where == "option" else 77
    assert names[1] == f"user4321:x:4321:{group}::/shanty/user:/bin/sh"
    theirs = {"name": "users", "mountPath": "/etc/passwd"}
    inner["volumeMounts"] = [theirs]
    options |= {"k8s_patch": json.dumps({"spec": {"template": {"spec": pod}}})}
    made = objects.job_of(replace(JOB, options=options), RUN)
    assert [one for one in container(made)["volumeMounts"] if one["mountPath"] == "/etc/passwd"] \
        == [theirs]  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON, JSON)
def test_a_merge_patch_twice_is_once(target: Any, patch: Any) -> None:
    once = objects.merged(target, patch)
    assert objects.merged(once, patch) == once


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu=yes:NoSchedule",
         {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}),
        ("*", {"operator": "Exists"}),
    ],
)  # fmt: skip
def test_tolerations(text: str, found: dict[str, str]) -> None:
    assert objects.toleration(text) == found


def test_bad_words() -> None:
    with pytest.raises(UsageError, match="unknown effect"):
        objects.toleration("gpu:Sometimes")
    for text in ("", ":", "=x"):
        with pytest.raises(UsageError, match="names no taint"):
            objects.toleration(text)
    with pytest.raises(UsageError, match="invalid --node-selector"):
        objects.job_of(
            JobSpec(Script("x"), ranks=1, image="i", options={"node_selector": ("ssd",)}), RUN
        )


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"name": "zzz", "labels": None}},
        {"metadata": {"name": None, "generateName": "z"}},
        {"spec": {"template": {"metadata": {"labels": {objects.LABEL: "other"}}}}},
        {"spec": {"template": {"metadata": None}}},
    ],
)
def test_a_run_finds_its_job_whatever_a_patch_says(patch: dict[str, Any]) -> None:
    made = objects.job_of(replace(JOB, options={"k8s_patch": json.dumps(patch)}), RUN)
    assert made["metadata"]["name"] == objects.name_of(RUN)
    assert "generateName" not in made["metadata"]
    for owner in (made, made["spec"]["template"]):
        assert owner["metadata"]["labels"][objects.LABEL] == RUN


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": None},
        {"spec": {"template": {"spec": {"containers": None}}}},
        {"spec": {"template": {"spec": {"containers": [5]}}}},
        {"spec": {"template": {"spec": {"containers": [
            {"name": "run", "env": [{"name": "SHANTY_POD_PORT", "value": "abc"}]}]}}}},
    ],
)  # fmt: skip
def test_a_patch_that_leaves_no_job(patch: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="leaves no Job"):
        objects.job_of(replace(JOB, options={"k8s_patch": json.dumps(patch)}), RUN)


def test_a_date_in_a_patch_is_text(tmp_path: Path) -> None:
    file = tmp_path / "patch.yaml"
    file.write_text("metadata: {annotations: {when: 2026-01-01}}")
    assert json.loads(objects.read_patch(file))["metadata"]["annotations"]["when"] == "2026-01-01"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "a: 1",
        "spec: [",
        "\x00",
        "metadata: !!binary aGk=",
        "spec: {x: .inf}",
        "--- {}\n--- {}",
    ],
)
def test_what_is_no_patch(tmp_path: Path, text: str) -> None:
    file = tmp_path / "patch.yaml"
    file.write_text(text)
    with pytest.raises(UsageError):
        objects.read_patch(file)


# --------------------------------------------------------------- the Role that runs need


def test_who_gets_the_role() -> None:
    given, binding = role.manifests("team", account="runner")
    assert {rule["resources"][0] for rule in given["rules"]} >= {"jobs", "pods/exec"}
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "runner", "namespace": "team"}
    ]


def test_what_an_operators_objects_need_more() -> None:
    (given,) = role.manifests("team", operator=True)
    resources = [rule["resources"][0] for rule in given["rules"]]
    assert {"jobs", "mpijobs", "trainjobs", "pods/log"} <= set(resources)
    assert resources.count("pods") == resources.count("configmaps") == 1
