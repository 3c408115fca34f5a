"""What goes wrong in a cluster, planted: said in words, with the pod's name; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kube_runs import Kube

from runs import wait_for
from shanty.runtime.errors import LaunchError, PrepareError, UsageError
from shanty.runtime.kubernetes import pod as pod_program
from shanty.runtime.rundir import RunDir, read_json

LAUNCH, PREPARE, USAGE = LaunchError.exit_code, PrepareError.exit_code, UsageError.exit_code
KILLED = 128 + signal.SIGKILL


@contextmanager
def admins(kube: Kube, kind: str, body: dict[str, Any], group: str = "api/v1") -> Iterator[None]:
    """Something that only an administrator makes, for a while."""
    its = kube.by_admin
    its.call("POST", its.path(kind, group=group), body)
    try:
        yield
    finally:
        its.call("DELETE", its.path(kind, body["metadata"]["name"], group))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--image", "localhost:1/none:1"], LAUNCH, "cannot be pulled for pod"),
        (["--image", "Bad Name"], LAUNCH, "invalid image name"),
        (["--service-account", "nobody"], LAUNCH, "see --service-account"),
        (["--priority-class", "nobody"], LAUNCH, "see --priority-class"),
        (["--node-selector", "no=such", "--schedule-timeout", "5s"], LAUNCH, "--node-selector"),
        (["--mount", "pvc:nobody:/data", "--schedule-timeout", "5s"], LAUNCH, "nobody"),
        (["--mount", "/data:/data"], USAGE, "pvc:NAME"),
        (["--runtime", "docker"], USAGE, "--runtime"),
        (["--partition", "long"], USAGE, "for Slurm"),
        (["--k8s-patch", "hello.py"], USAGE, "patch"),
        (["--node-selector", "ssd"], USAGE, "KEY=VALUE"),
    ],
)
def test_what_cannot_be(kube: Kube, words: list[str], code: int, said: str) -> None:
    done = kube(*words, "-n", "2", "hello.py")
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_cpu_that_no_node_has_in_numbers(kube: Kube) -> None:
    words = ("-n", "2", "--cpus-per-rank", "4000", "--schedule-timeout", "5s", "hello.py")
    done = kube(*words)
    assert done.returncode == LAUNCH
    assert "0 of 2 pods run after 5 s" in done.stderr
    assert "Insufficient cpu" in done.stderr  # the scheduler's words, for who may not see nodes
    namespace = kube.cluster().namespace
    done = kube.shanty(
        *("run", *kube.words[2:], "--on", f"k8s:/{namespace}", *words),
        env={"KUBECONFIG": str(kube.admin)}, timeout=90,
    )  # fmt: skip
    assert done.returncode == LAUNCH, done.stderr
    assert "needs 4e+03 CPU: node" in done.stderr
    assert " free" in done.stderr


def test_a_secret_that_is_missing(kube: Kube) -> None:
    """The pod has a node, and does not start: its events say why."""
    patch = {
        "volumes": [{"name": "s", "secret": {"secretName": "nobody"}}],
        "containers": [{"name": "run", "volumeMounts": [{"name": "s", "mountPath": "/s"}]}],
    }
    (kube.shanty.folder / "patch.yaml").write_text(
        json.dumps({"spec": {"template": {"spec": patch}}})
    )
    done = kube("-n", "1", "--k8s-patch", "patch.yaml", "--schedule-timeout", "20s", "hello.py")
    assert done.returncode == LAUNCH, done.stderr
    assert 'secret "nobody" not found' in done.stderr
    assert f"kubectl describe pod shanty-{kube.last.id}" in done.stderr


MISSING = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "nobody", "key": "k"}}}


@pytest.mark.parametrize(
    ("kind", "container", "said"),
    [
        ("initContainers", {"command": ["sh", "-c", "echo no data here; exit 3"]},
         ("its init container other failed", "it ended with 3")),
        ("initContainers", {"image": "localhost:1/none:1"}, ("cannot be pulled for pod",)),
        ("containers", {"command": ["sleep", "60"], "env": [MISSING]},
         ("its container other cannot be configured", 'secret "nobody" not found; needed by KEY')),
    ],
)  # fmt: skip
def test_a_container_beside_the_runs(
    kube: Kube, kind: str, container: dict[str, Any], said: tuple[str, ...]
) -> None:
    """The run does not begin without it, and its error names it."""
    other = {"name": "other", "image": kube.image, **container}
    (kube.shanty.folder / "patch.yaml").write_text(
        json.dumps({"spec": {"template": {"spec": {kind: [other]}}}})
    )
    done = kube("-n", "1", "--k8s-patch", "patch.yaml", "hello.py")
    assert done.returncode == LAUNCH, done.stderr
    assert all(each in done.stderr for each in said), done.stderr


@pytest.mark.parametrize("more", [[], ["--schedule-timeout", "5s"]])
def test_a_quota(kube: Kube, more: list[str]) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    with admins(kube, "resourcequotas", quota):
        its = kube.cluster()
        counts = lambda: its.call("GET", its.path("resourcequotas", "small")).get("status")  # noqa: E731
        wait_for(counts, 30, "the quota does not count")
        done = kube("-n", "2", *more, "hello.py")
    assert done.returncode == LAUNCH, done.stderr
    assert "\n  why: the namespace's quota is too small" in done.stderr or not more
    assert "quota is too small" in done.stderr
    assert "exceeded quota: small" in done.stderr


def test_out_of_memory(kube: Kube) -> None:
    (kube.shanty.folder / "hungry.py").write_text(
        "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        "if MPI.COMM_WORLD.rank == 1:\n    held = [bytearray(32 << 20) for _ in range(64)]\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    done = kube("-n", "2", "--memory-per-rank", "256M", "hungry.py")
    assert done.returncode == KILLED, done.stderr
    run = kube.last
    failure = (read_json(run.status) or {})["failure"]
    assert failure["rank"] == 1
    assert failure["host"].startswith(f"shanty-{run.id}")
    assert "memory" in failure["what"] + failure["why"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_pod_is_deleted(kube: Kube, number: int) -> None:
    run = kube.submit("-n", "2", "up.py")
    kube.await_state(run, "running")
    name = kube.pod_of(run, number)
    kube.take_away(name)
    began = time.monotonic()
    found = kube.await_state(run, "failed", seconds=30)
    assert time.monotonic() - began < 25
    assert f"pod {name}" in found["failure"]["what"]
    assert "was deleted" in found["failure"]["what"]
    assert found["exit_code"] == LAUNCH
    assert "is up" in kube.do("logs", run.id)  # also of the pod that is gone


def test_a_pod_is_evicted(kube: Kube) -> None:
    run = kube.submit("-n", "2", "up.py")
    kube.await_state(run, "running")
    name = kube.pod_of(run)
    kube.take_away(name, "evicted")
    found = kube.await_state(run, "failed", seconds=40)
    assert f"pod {name}" in found["failure"]["what"]


def test_a_kubelet_is_killed(kube: Kube) -> None:
    """Its containers go on, and so does the run; it is stopped from here all the same."""
    kube.changer()
    run = kube.submit("-n", "2", "up.py")
    kube.await_state(run, "running")
    name = kube.pod_of(run)
    node = kube.pods(run)[name]["spec"]["nodeName"]
    kube.change("kill-kubelet", node)
    try:
        lost = lambda: _ready(kube, name) == "False"  # noqa: E731
        wait_for(lost, 90, "the cluster takes the pod for well")
        assert kube.described(run)["state"] == "running"
        kube.do("stop", run.id)
        assert kube.await_state(run, "stopped")["state"] == "stopped"
    finally:
        kube.change("start-kubelet", node)
        # A kubelet that starts anew looks for what its pods had mounted, and that is gone.
        its = kube.by_admin
        for pod in kube.pods(run):
            its.call("DELETE", its.path("pods", pod), {"gracePeriodSeconds": 0})


def _ready(kube: Kube, name: str) -> str:
    conditions = kube.pods(kube.last)[name]["status"]["conditions"]
    return next(str(one["status"]) for one in conditions if one["type"] == "Ready")


def test_the_api_server_is_restarted(kube: Kube) -> None:
    kube.changer()
    (kube.shanty.folder / "long.py").write_text(
        "import time\nfrom mpi4py import MPI\n"
        "for step in range(40):\n"
        "    MPI.COMM_WORLD.Barrier()\n    time.sleep(0.5)\n"
        "    if MPI.COMM_WORLD.rank == 0: print('step', step, flush=True)\n"
    )
    process = kube.start("-n", "2", "long.py")
    wait_for(
        lambda: bool(kube.runs) and kube.described(kube.last)["state"] == "running", 60, "no run"
    )
    kube.change("restart-api", "8")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "has not answered: the run may go on there" in err.decode()  # 8 s, said after 5
    assert [int(line.split()[-1]) for line in out.decode().splitlines()] == list(range(40))


def test_a_token_expires(kube: Kube) -> None:
    """Who asks is told; who sees the run through has a better one, and can still end it."""
    config = json.loads(kube.user.read_text())
    bad = kube.shanty.folder / "bad.kubeconfig"
    bad.write_text(json.dumps(config))
    good, kube.user = kube.user, bad
    run = kube.submit("-n", "2", "up.py")
    kube.await_state(run, "running")
    config["users"][0]["user"] = {"token": "expired"}
    bad.write_text(json.dumps(config))
    elsewhere = {"KUBECONFIG": "/nowhere"}  # the one that the run was begun with counts
    done = kube.shanty("stacks", run.id, env=elsewhere)
    assert done.returncode == PREPARE, done.stderr
    assert "does not accept your credentials" in done.stderr
    done = kube.shanty("stop", run.id, env=elsewhere)
    assert done.returncode == 0, done.stderr
    kube.user = good
    assert kube.described(run)["state"] == "stopped"
    done = kube.shanty("run", *kube.words, "-n", "1", "hello.py", env={"KUBECONFIG": str(bad)})
    assert done.returncode == PREPARE
    assert "does not accept your credentials" in done.stderr


def test_exec_is_forbidden(kube: Kube) -> None:
    """A user who may make jobs, and not exec."""
    group = "apis/rbac.authorization.k8s.io/v1"
    its = kube.by_admin
    plain = ["configmaps", "secrets", "pods", "events"]
    rules = [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": plain, "verbs": ["*"]},
    ]
    role = {"metadata": {"name": "no-exec"}, "rules": rules}
    account = {"metadata": {"name": "no-exec"}}
    binding = {
        "metadata": {"name": "no-exec"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "no-exec"},
        "subjects": [{"kind": "ServiceAccount", "name": "no-exec", "namespace": its.namespace}],
    }
    with (
        admins(kube, "serviceaccounts", account),
        admins(kube, "roles", role, group),
        admins(kube, "rolebindings", binding, group),
    ):
        secrets = its.path("secrets")

        def token() -> str:
            for one in its.call("GET", secrets)["items"]:
                annotations = one["metadata"].get("annotations") or {}
                if annotations.get("kubernetes.io/service-account.name") == "no-exec":
                    import base64

                    return base64.b64decode(one["data"]["token"]).decode()
            return ""

        wait_for(lambda: bool(token()), 20, "the account has no token")
        config = json.loads(kube.user.read_text())
        config["users"][0]["user"] = {"token": token()}
        file = kube.shanty.folder / "no-exec.kubeconfig"
        file.write_text(json.dumps(config))
        done = kube.shanty("run", *kube.words, "-n", "2", "hello.py", env={"KUBECONFIG": str(file)})
    assert done.returncode == PREPARE, done.stderr
    assert "pods/exec" in done.stderr
    assert "shanty k8s role" in done.stderr


def test_a_policy_between_pods(kube: Kube) -> None:
    kube.change("block", str(pod_program.PORT))
    try:
        done = kube("-n", "2", "hello.py")
    finally:
        kube.change("unblock", str(pod_program.PORT))
    assert done.returncode == LAUNCH, done.stderr
    assert "does not reach" in done.stderr
    assert "network policies" in done.stderr
    assert f"shanty-{kube.last.id}" in done.stderr


def test_little_shared_memory(kube: Kube) -> None:
    """A container has 64 MB unless something else is mounted there."""
    (kube.shanty.folder / "patch.yaml").write_text(
        "spec: {template: {spec: {volumes: [{name: shm, emptyDir: {medium: Memory, "
        "sizeLimit: 64Mi}}]}}}\n"
    )
    (kube.shanty.folder / "room.py").write_text(
        "import os\nfrom mpi4py import MPI\n"
        "print('room', os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize)\n"
    )
    done = kube("-n", "2", "room.py")
    assert done.returncode == 0, done.stderr
    assert all(int(line.split()[-1]) > 1 << 30 for line in done.stdout.splitlines())


@pytest.mark.parametrize("stage", ["made", "started", "prepared", "running"])
@pytest.mark.parametrize("who", ["cli", "watcher"])
def test_killed_at_each_stage(kube: Kube, stage: str, who: str) -> None:
    """Without its terminal a run goes on; without its watcher the next look sees to it."""
    process = kube.start("-n", "2", "up.py")
    wait_for(lambda: _is_at(kube, stage), 60, f"it is not {stage}")
    run = kube.last
    process.kill()
    process.communicate()
    if who == "watcher":
        os.kill((read_json(run.path / "watcher.json") or {})["watcher"]["pid"], signal.SIGKILL)
        if stage != "running":
            found = kube.await_state(run, "lost", "running")
            assert found["state"] == "running" or "was killed" in found["failure"]["what"]
            return
    assert kube.await_state(run, "running")["joined"] == 2


def _is_at(kube: Kube, stage: str) -> bool:
    if not kube.runs:
        return False
    run = RunDir(kube.last.path)
    status, site = read_json(run.status) or {}, read_json(run.site) or {}
    reason = status.get("reason") or ""
    return {
        "made": bool(site.get("made")),
        "started": reason.startswith("its pods are being started"),
        "prepared": reason.startswith("its pods are prepared"),
        "running": status.get("state") == "running",
    }[stage]


def test_ctrl_c_while_pods_start(kube: Kube) -> None:
    process = kube.start("-n", "2", "up.py", process_group=0)
    wait_for(lambda: _is_at(kube, "started"), 60, "it is not started")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert kube.described(kube.last)["state"] == "stopped"


def test_the_watchers_log_is_empty(kube: Kube) -> None:
    done = kube("-n", "2", "hello.py")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not kube.left(kube.last), 60, "objects are left")
    assert (kube.last.logs / "watcher.log").read_text() == ""
