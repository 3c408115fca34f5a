"""Kubeflow's objects: what an MPIJob asks for is taken, and ours are right for each MPI."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpijobs
from shanty.client.manifest import of_manifest
from shanty.launch.kubernetes import kubeflow, mpijob, objects, variables
from shanty.runtime.errors import NotFoundError, ShantyError, UsageError
from shanty.runtime.spec import JobSpec, Module, Raw, Script

RUN = "20261125-120000-abcd"


def job(**spec: Any) -> dict[str, Any]:
    made = json.loads(mpijobs.mpijob("OpenMPI", "i:1").partition("---\n")[2])
    made["spec"].update(spec)
    return dict(made)


SPECS = "spec.mpiReplicaSpecs"
POD = f"{SPECS}.Worker.template.spec"
MAIN = f"{POD}.containers[0]"


def pod(made: dict[str, Any], role: str = "Worker") -> Any:
    """The pods of a role."""
    return made["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]


def worker(made: dict[str, Any]) -> Any:
    """The main container of the workers."""
    return pod(made)["containers"][0]


def launcher(made: dict[str, Any]) -> Any:
    """The container of the launcher."""
    return pod(made, "Launcher")["containers"][0]


def read(made: dict[str, Any], *, cluster: bool = False, **env: str) -> mpijob.Manifest:
    return mpijob.manifest_of(made, cluster=cluster, env=env, usual={})


def test_what_an_mpijob_asks_for() -> None:
    made = job(runPolicy={"activeDeadlineSeconds": 60, "backoffLimit": 2,
                          "schedulingPolicy": {"queue": "q", "priorityClass": "high",
                                               "scheduleTimeoutSeconds": 5}})  # fmt: skip
    launcher(made)["env"] = [
        {"name": "A", "value": "1"},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "s"}}},
    ]
    worker(made)["resources"]["limits"]["nvidia.com/gpu"] = 2
    worker(made)["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    pod(made)["volumes"] = [{"name": "data", "emptyDir": {}}]
    pod(made)["nodeSelector"] = {"disk": "ssd"}
    found = read(made)
    given_ = found.given
    assert (given_["ranks"], given_["nodes"], given_["ranks_per_host"]) == (4, 2, 2)
    assert given_["image"] == "i:1" and given_["mpi"] == "image"
    assert given_["env"] == {"A": "1"}
    assert given_["time_limit"] == 60.0
    assert "retries" not in given_  # which counts lost hosts only
    assert (given_["queue"], given_["priority_class"], given_["schedule_timeout"]) == (
        "q", "high", 5.0,
    )  # fmt: skip
    assert given_["memory_per_rank"] == 256 << 20
    assert given_["gpus_per_rank"] == 1
    assert isinstance(found.command, Raw) and found.command.argv[0] == "mpirun"
    assert found.ignored["the variable S"].startswith("its value is s of the Secret keys")
    ours = objects.job_of(
        JobSpec(found.command).with_values({k: v for k, v in given_.items() if k != "env"}), RUN
    )
    spec = ours["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    own = spec["containers"][0]
    assert own["name"] == "run" and own["command"][0] == "sh"  # ours, not sshd
    assert own["resources"]["limits"] == {"cpu": "1", "memory": "512Mi", "nvidia.com/gpu": 2}
    assert own["resources"]["requests"]["cpu"] == "1"
    assert "/data" in {one["mountPath"] for one in own["volumeMounts"]}


def test_variants() -> None:
    made = job(runLauncherAsWorker=True)
    assert read(made).given["ranks"] == 6
    alone = job()
    del alone["spec"]["mpiReplicaSpecs"]["Worker"]
    assert read(alone).given["nodes"] == 1
    other = job()
    launcher(other).update(image="l:1", workingDir="/my work")
    found = read(other)
    assert any("not in l:1" in note for note in found.notes)
    assert isinstance(found.command, Raw) and found.command.shell
    assert found.command.argv[0].startswith("cd '/my work' && mpirun")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made.update(apiVersion="kubeflow.org/v7"), "is not known"),
        (lambda made: made.update(kind="TrainJob"), "no MPIJob"),
        (lambda made: made["spec"].pop("mpiReplicaSpecs"),
         f"{SPECS}.Launcher.template.spec.containers is missing"),
        (lambda made: made["spec"].update(mpiReplicaSpecs=[]),
         "invalid spec.mpiReplicaSpecs: [] is not an object"),
        (lambda made: made["spec"].update(slotPerWorker=2), "unknown field spec.slotPerWorker"),
        (lambda made: made["spec"].update(other=2), "unknown field spec.other"),
        (lambda made: made["spec"].update(cleanPodPolicy="All"), "unknown field spec.cleanPod"),
        (lambda made: made["spec"].update(slotsPerWorker=0), "invalid spec.slotsPerWorker: 0"),
        (lambda made: made["spec"].update(slotsPerWorker="2"),
         "invalid spec.slotsPerWorker: '2' is not a whole number"),
        (lambda made: made["spec"].update(slotsPerWorker=True), "True is not a whole number"),
        (lambda made: made["spec"].update(mpiImplementation="OpenMpi"), "'OpenMpi'"),
        (lambda made: made["spec"]["runPolicy"].update(backoffLimit=-1), "backoffLimit: -1"),
        (lambda made: made["spec"]["runPolicy"].update(activeDeadlineSeconds=0), "Seconds: 0"),
        (lambda made: made["spec"]["runPolicy"].update(suspend="no"), "is not true or false"),
        (lambda made: made["metadata"].update(name=5), "invalid metadata.name: 5 is not a text"),
        (lambda made: made["metadata"].update(lables={}), "unknown field metadata.lables"),
        (lambda made: pod(made).update(contianers=[]), f"{POD}.contianers"),
        (lambda made: pod(made).update(containers=[]), f"{POD}.containers is missing"),
        (lambda made: pod(made).update(containers=[None]), f"{POD}.containers[0]: None"),
        (lambda made: worker(made).pop("image"), f"{MAIN}.image is missing"),
        (lambda made: worker(made).update(Image="x"), f"unknown field {MAIN}.Image"),
        (lambda made: worker(made)["resources"]["limits"].update(memory="2Q"),
         f"{MAIN}.resources: memory is '2Q'"),
        (lambda made: worker(made).update(env=[{"name": "A", "valueFrm": {}}]),
         f"{MAIN}.env[0].valueFrm"),
        (lambda made: worker(made).update(env=[{"name": "A", "value": 1}]),
         f"{MAIN}.env[0].value: 1 is not a text"),
        (lambda made: worker(made).update(env=[{"name": "A=B", "value": "c"}]),
         f"{MAIN}.env[0] cannot be set"),
        (lambda made: launcher(made).update(command="mpirun python3 x.py"), "is not a list"),
        (lambda made: launcher(made).update(args=["-np", 2]), "args[1]: 2 is not a text"),
        (lambda made: launcher(made).update(image="l:1"), None),  # that of the workers counts
    ],
)  # fmt: skip
def test_what_is_no_mpijob(tmp_path: Path, change: Any, said: str | None) -> None:
    made = job()
    change(made)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(made))
    if said is None:
        assert mpijob.read(file)
        return
    with pytest.raises(UsageError) as caught:
        mpijob.read(file)
    assert said in caught.value.what


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        mpijob.read(tmp_path / "none.yaml")
    (tmp_path / "two.yaml").write_text("\n---\n".join([json.dumps(job())] * 2))
    with pytest.raises(UsageError, match="2 MPIJobs"):
        mpijob.read(tmp_path / "two.yaml")


@given(st.text(max_size=40))
def test_any_text_is_a_word_or_a_job(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("any") / "x.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ShantyError):
        mpijob.read(file)


OURS = JobSpec(Script("train.py", ("--lr", "1")), ranks=4, nodes=2, image="i:1", env={"A": "1"})
FILES = {"train.py": b"print(1)", "lib/a.py": b""}


@pytest.mark.parametrize(
    ("flavour", "name"),
    [("openmpi4", "OpenMPI"), ("openmpi5", "OpenMPI"), ("mpich", "MPICH"), ("intel", "Intel")],
)
def test_our_mpijob(flavour: str, name: str) -> None:
    config, made = kubeflow.made_of("mpijob", OURS, RUN, flavour, FILES)
    assert made["spec"]["mpiImplementation"] == name
    assert made["spec"]["slotsPerWorker"] == 2
    assert made["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    line = launcher(made)["command"]
    assert line[0] == "mpirun"
    assert line[line.index("-n") + 1] == "4"
    assert "/etc/mpi/hostfile" in line
    assert line[-4:] == ["python3", "train.py", "--lr", "1"]
    variables = {one["name"]: one["value"] for one in launcher(made)["env"]}
    assert variables["A"] == "1"
    assert ("PRTE_MCA_prte_default_hostfile" in variables) == (name == "OpenMPI")
    assert "command" not in worker(made)  # sshd is the operator's
    assert set(config["binaryData"]) == {"f0", "f1"}


def test_our_trainjob() -> None:
    job_ = JobSpec(Module("train"), ranks=4, nodes=2, image="i:1", options={"queue": "q"})
    _, runtime, made = kubeflow.made_of("trainjob", job_, RUN, "openmpi5", FILES)
    assert made["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert made["spec"]["trainer"]["numNodes"] == 2
    assert runtime["spec"]["mlPolicy"]["mpi"] == {
        "numProcPerNode": 2, "mpiImplementation": "OpenMPI",
    }  # fmt: skip
    assert made["spec"]["trainer"]["command"][-3:] == ["python3", "-m", "train"]


def test_a_workspace_that_is_too_large(tmp_path: Path) -> None:
    """It is not read for that; what is no file is left out."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="ConfigMap"):
        kubeflow.files_of(tmp_path, ["big"])
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "small").write_text("x")
    assert kubeflow.files_of(tmp_path, ["gone", "small"]) == {"small": b"x"}


@pytest.mark.parametrize(
    "change",
    [
        {"uid": 5},
        {"k8s_patch": "{}"},
        {"labels": ("no pair",)},
        {"elastic": 1},
        {"warm": ("torch",)},
    ],
)
def test_what_an_operators_object_cannot_have(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        kubeflow.made_of("mpijob", OURS.with_values(change), RUN, "openmpi5", {})


def test_arguments_without_a_command(tmp_path: Path) -> None:
    """As Flyte's backend makes them. A launcher's line is one; else the entry point has it."""
    made = job()
    del launcher(made)["command"]
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(made))
    with pytest.raises(UsageError, match="has no command"):
        of_manifest(file, [], tmp_path, {"env": {}})
    own = ["mpirun", "-n", "4", "./a.out"]
    assert list(of_manifest(file, own, tmp_path, {"env": {}}).command.argv) == own
    launcher(made)["args"] = own
    file.write_text(json.dumps(made))
    assert list(of_manifest(file, [], tmp_path, {"env": {}}).command.argv) == own
    found = mpijob.read(file)
    assert any("arguments alone" in note for note in found.notes)
    assert "FLYTE_FAIL_ON_ERROR" not in found.given["env"]
    flyte = ["pyflyte-fast-execute", "--", "mpirun", "python", "e.py", "pyflyte-execute"]
    launcher(made)["args"] = flyte
    file.write_text(json.dumps(made))
    found = mpijob.read(file)
    assert found.command is not None and list(found.command.argv) == flyte
    assert found.given["env"]["FLYTE_FAIL_ON_ERROR"] == "true"


def test_references_in_the_command() -> None:
    """As Kubernetes puts them in: https://kubernetes.io/docs/tasks/inject-data-application/."""
    made = job()
    launcher(made).update(command=["$(RUN)"], args=["$(NO)", "$$(RUN)", "a $(RUN)"])
    launcher(made)["env"] = [{"name": "RUN", "value": "mpirun"}]
    found = read(made)
    assert found.command is not None
    assert list(found.command.argv) == ["mpirun", "$(NO)", "$(RUN)", "a mpirun"]
    launcher(made)["env"].append({"name": "NO", "valueFrom": {"secretKeyRef": {"name": "k"}}})
    with pytest.raises(UsageError, match="refers to NO, which the cluster sets") as caught:
        read(made)
    assert caught.value.fix == "-e NO=VALUE"
    found = read(made, NO="it's")
    assert found.command is not None
    assert list(found.command.argv) == ["mpirun", "it's", "$(RUN)", "a mpirun"]
    found = read(made, cluster=True)
    assert found.command is not None and found.command.shell
    assert found.command.argv == ("mpirun \"${NO}\" '$(RUN)' 'a mpirun'",)


SECRET = {"secretKeyRef": {"name": "keys", "key": "api"}}


def test_variables_that_are_the_clusters() -> None:
    made = job()
    pod(made)["containers"][0] |= {
        "envFrom": [{"configMapRef": {"name": "teams"}}],
        "env": [
            {"name": "KEY", "valueFrom": SECRET},
            {"name": "BASE", "value": "a$b"},
            {"name": "WHO", "value": "$(BASE) $$(X) $(TEAM)-$(KEY)"},
            {"name": "PLAIN", "value": "$(BASE)/$$(KEY)"},
            {"name": "log.key", "valueFrom": SECRET},
        ],
    }
    launcher(made)["env"] = [{"name": "LATE", "value": "$(KEY)"}, {"name": "BASE", "value": "2"}]
    found = read(made, cluster=True)
    # The launcher has no KEY, so that this stays as it is.
    assert found.given["env"] == {"BASE": "2", "PLAIN": "a$b/$(KEY)", "LATE": "$(KEY)"}
    (lost,) = [path for path in found.ignored if "variable" in path]  # by the pods' shell
    assert lost == "the variable log.key" and "-e log.key=VALUE" in found.ignored[lost]
    (own,) = json.loads(found.given["k8s_patch"])["spec"]["template"]["spec"]["containers"]
    assert own["envFrom"] == [{"configMapRef": {"name": "teams"}}]
    assert own["env"] == [
        {"name": "KEY", "valueFrom": SECRET},
        {"name": "WHO", "value": "a$$b $$(X) $(TEAM)-$(KEY)"},
    ]
    found = read(made)
    assert found.ignored["the variable WHO"].startswith("it refers to TEAM, KEY")
    assert found.ignored[f"{MAIN}.envFrom"] == "-e NAME=VALUE"
    found = read(made, TEAM="blue", KEY="k")
    assert found.given["env"]["WHO"] == "a$b $(X) blue-k"
    assert "the variable KEY" not in found.ignored
    usual = mpijob.manifest_of(made, cluster=False, env={}, usual={"KEY": "toml", "BASE": "no"})
    assert usual.given["env"]["KEY"] == "toml" and usual.given["env"]["BASE"] == "2"


def test_references_to_containers_by_their_names() -> None:
    """The worker's container has another name in a run's pods, and so has one that is called so."""
    made, memory = job(), {"resource": "limits.memory"}
    name = worker(made)["name"]
    its = {"resourceFieldRef": {**memory, "containerName": name}}
    others = {"resourceFieldRef": {**memory, "containerName": "run"}}
    launchers = {"resourceFieldRef": {**memory, "containerName": launcher(made)["name"]}}
    worker(made)["env"] = [{"name": "A", "valueFrom": its}, {"name": "B", "valueFrom": others}]
    launcher(made)["env"] = [{"name": "C", "valueFrom": launchers}]
    pod(made)["containers"].append({"name": "run", "image": "i:1"})
    pod(made)["volumes"] = [{"name": "v", "downwardAPI": {"items": [{"path": "m", **its}]}}]
    mark = "container.apparmor.security.beta.kubernetes.io"
    made["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["metadata"] = {"annotations": {
        "kubectl.kubernetes.io/default-container": name, f"{mark}/{name}": "a", f"{mark}/run": "b",
    }}  # fmt: skip
    patch = json.loads(read(made, cluster=True).given["k8s_patch"])["spec"]["template"]
    seen = json.dumps(patch["spec"])
    names = [one["valueFrom"]["resourceFieldRef"]["containerName"]
             for one in patch["spec"]["containers"][0]["env"]]  # fmt: skip
    assert names == ["run", "run-own", "run"]
    assert patch["spec"]["volumes"][0]["downwardAPI"]["items"][0]["resourceFieldRef"] == {
        **memory, "containerName": "run"
    }  # fmt: skip
    assert [one["name"] for one in patch["spec"]["containers"]] == ["run", "run-own"]
    assert f'"{name}"' not in seen
    assert patch["metadata"]["annotations"] == {
        "kubectl.kubernetes.io/default-container": "run", f"{mark}/run": "a", f"{mark}/run-own": "b"
    }  # fmt: skip


names = st.sampled_from(["A", "B", "C", "NO", ""])
pieces = st.one_of(names.map(lambda n: f"$({n})"), names.map(lambda n: f"$$({n})"),
                   st.sampled_from(["$", "$$", "$(", ")", "x", "'", " "]))  # fmt: skip
texts = st.lists(pieces, max_size=6).map("".join)


def by_the_letter(text: str, values: dict[str, str]) -> str:
    """Expand as k8s.io/kubernetes/third_party/forked/golang/expansion describes it."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            out, at = out + values.get(name, text[at : end + 1]), end + 1
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


@given(st.lists(st.tuples(st.sampled_from("ABC"), texts), max_size=5), texts)
def test_references_expand_as_kubernetes_does(env: list[tuple[str, str]], word: str) -> None:
    entries = [{"name": name, "value": value} for name, value in env]
    found = variables.Variables.of({"env": entries}, "x", {}, {})
    values: dict[str, str] = {}
    for name, value in env:
        values[name] = by_the_letter(value, values)
    assert found.plain == values
    assert found.in_words([word]) == [by_the_letter(word, values)]
    assert shlex.split(found.in_shell([word, "b"])) == [by_the_letter(word, values), "b"]
    # What is put in before the cluster expands the rest makes no difference to it.
    partly = variables.expanded(word, {"A": values.get("A", "a$$(B)")}.get, again=True)
    whole = {"A": "a$$(B)", **values}
    assert by_the_letter(partly, whole) == by_the_letter(word, whole)


FULL = {  # fields of a pod, and whether a cluster has them from the worker
    "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
    "initContainers": [{"name": "first", "image": "i:1"}],
    "serviceAccountName": "trainer",
    "nodeSelector": {"disk": "ssd"},
    "securityContext": {"runAsUser": 5},
    "fieldOfTheFuture": 3,
}


def test_each_field_has_an_effect_or_is_named() -> None:
    made = job(
        runPolicy={"cleanPodPolicy": "None", "ttlSecondsAfterFinished": 60, "backoffLimit": 2,
                   "suspend": True, "managedBy": "kueue.x-k8s.io/multikueue",
                   "schedulingPolicy": {"minAvailable": 3, "queue": "q"}},
    )  # fmt: skip
    made["metadata"] |= {
        "namespace": "team",
        "labels": {"a": "b"},
        "uid": "x",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    replicas = made["spec"]["mpiReplicaSpecs"]
    replicas["Launcher"]["restartPolicy"] = "OnFailure"
    replicas["Launcher"]["template"]["spec"] |= {**FULL, "serviceAccountName": "launcher"}
    pod(made).update(FULL)
    sidecar = {"name": "side", "image": "s:1"}
    pod(made)["containers"].append(sidecar)
    pod(made)["containers"][0] |= {
        "command": ["sh", "-c", "prepare && sshd -De"], "args": [], "workingDir": "/x",
        "readinessProbe": {"tcpSocket": {"port": 2222}}, "volumeMounts": [
            {"name": "data", "mountPath": "/data"}],
    }  # fmt: skip
    launcher_spec = f"{SPECS}.Launcher.template.spec"
    both = {
        "spec.runPolicy.ttlSecondsAfterFinished", "spec.runPolicy.backoffLimit",
        "spec.runPolicy.suspend", "spec.runPolicy.managedBy", "spec.runPolicy.cleanPodPolicy",
        "spec.runPolicy.schedulingPolicy.minAvailable", f"{SPECS}.Launcher.restartPolicy",
        f"{launcher_spec}.serviceAccountName", f"{launcher_spec}.containers[0].resources",
        f"{MAIN}.command", f"{MAIN}.workingDir", f"{MAIN}.readinessProbe",
    }  # fmt: skip
    found = read(made, cluster=True)
    assert set(found.ignored) == both
    assert found.namespace == "team"
    ours = objects.job_of(
        JobSpec(Raw(("x",)), image="i:1", options={"k8s_patch": found.given["k8s_patch"]}), RUN
    )
    assert ours["metadata"]["labels"]["a"] == "b" and "annotations" not in ours["metadata"]
    spec = ours["spec"]["template"]["spec"]
    assert {key: spec[key] for key in FULL if key != "volumes"} == {
        key: value for key, value in FULL.items() if key != "volumes"
    }
    assert spec["automountServiceAccountToken"] and spec["enableServiceLinks"]
    assert [one["name"] for one in spec["containers"]] == ["run", "side"]
    assert "readinessProbe" not in spec["containers"][0]
    elsewhere = read(made)
    assert set(elsewhere.ignored) == both | {
        "spec.runPolicy.schedulingPolicy.queue",
        "metadata.namespace", "metadata.labels", *(f"{POD}.{key}" for key in FULL),
        f"{POD}.containers (the container side)", f"{MAIN}.imagePullPolicy",
        f"{MAIN}.volumeMounts", f"{MAIN}.resources.limits.cpu",
    }  # fmt: skip
    text = elsewhere.notice()
    assert f"\n    {POD}.volumes: --mount SOURCE:TARGET" in text
    assert f"\n    {MAIN}.resources.limits.cpu: -c N" in text
    assert "backoffLimit: --retries N starts again where a host was lost, not where" in text
    assert read(job(runPolicy={"backoffLimit": 0, "cleanPodPolicy": "All"})).notice().count(
        "runPolicy") == 0  # fmt: skip


def test_options_that_are_typed_win(tmp_path: Path) -> None:
    made = job()
    made["metadata"]["namespace"] = "team"
    pod(made).update(serviceAccountName="theirs", nodeSelector={"disk": "ssd"})
    worker(made)["securityContext"] = {"runAsUser": 7, "runAsGroup": 8}
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(made))
    given_ = {"env": {}, "on": "k8s", "service_account": "mine", "cpus_per_rank": 3, "uid": 5}
    asked = of_manifest(file, [], tmp_path, given_)
    assert asked.on == "k8s:/team"
    spec = objects.job_of(asked, RUN)["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "mine" and spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "6", "memory": "512Mi"}
    security = spec["containers"][0]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (5, 8)
    asked = of_manifest(file, [], tmp_path, {"env": {}, "on": "k8s:ctx/other"})
    assert asked.on == "k8s:ctx/other"
    with pytest.raises(UsageError, match="--operator mpijob makes an object"):
        of_manifest(file, [], tmp_path, {"env": {}, "on": "k8s", "operator": "mpijob"})


def test_several_objects_in_a_file(tmp_path: Path) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "teams"}}
    file = tmp_path / "all.yaml"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [other, job()]}))
    assert "ConfigMap teams: it is not created" in mpijob.read(file).notice()
    file.write_text(json.dumps({"kind": "MPIJobList", "items": [job(), job()]}))
    with pytest.raises(UsageError, match="2 MPIJobs"):
        mpijob.read(file)
    file.write_text("kind: MPIJob\nspec: {slotsPerWorker: 1, slotsPerWorker: 2}\n")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        mpijob.read(file)
    assert "slotsPerWorker" in caught.value.why and "twice" in caught.value.why


def test_the_main_container_of_v1() -> None:
    made = job(mainContainer="worker", sshAuthMountPath=None, mpiImplementation=None)
    for key in ("sshAuthMountPath", "mpiImplementation"):
        del made["spec"][key]
    made["apiVersion"] = "kubeflow.org/v1"
    pod(made)["containers"].insert(0, {"name": "side", "image": "s:1"})
    assert read(made).given["image"] == "i:1"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "x", "All", "1Gi"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "spec", "env", "limits", "x"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


@given(st.data(), values, st.booleans())
def test_any_value_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, value: Any, cluster: bool
) -> None:
    other: dict[str, Any] = {"kind": "Secret", "metadata": {"name": "keys"}}
    at: Any = [job(), other]
    pod(at[0]).update(FULL, containers=[{**worker(at[0]), "securityContext": {"privileged": True},
                                         "env": [{"name": "A", "value": "$(B)"}]}])  # fmt: skip
    made = at
    for _ in range(data.draw(st.integers(1, 10))):
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        holder, key = at, data.draw(st.sampled_from(keys))
        at = holder[key]
        if not isinstance(at, dict | list):
            break
    holder[key] = value
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text("\n---\n".join(map(json.dumps, made)))
    with contextlib.suppress(UsageError):
        found = mpijob.read(file, cluster=cluster)
        assert isinstance(found.notice(), str)
        assert json.loads(mpijob.without(found.given["k8s_patch"], ["uid", "cpus_per_rank"]))


def test_a_manifest_that_grows(tmp_path: Path) -> None:
    """Aliases may be there, and not make more of it than anybody needs."""
    file = tmp_path / "job.yaml"
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    file.write_text("\n".join(lines))
    with pytest.raises(UsageError, match="cannot be read") as caught:
        mpijob.read(file)
    assert "values" in caught.value.why
    file.write_text("a: &a {x: *a}\n")
    with pytest.raises(UsageError, match="cannot be read"):
        mpijob.read(file)
    file.write_text("[" * 1000)
    with pytest.raises(UsageError, match="cannot be read"):
        mpijob.read(file)
