"""Kubeflow's objects: what an MPIJob asks for is taken, and ours are right for each MPI."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpijobs
from shanty.cli import jobs
from shanty.launch.kubernetes import kubeflow, mpijob, objects
from shanty.runtime.errors import NotFoundError, ShantyError, UsageError
from shanty.runtime.spec import JobSpec, Module, Raw, Script

RUN = "20261125-120000-abcd"


def starting(made: dict[str, Any]) -> dict[str, Any]:
    """The launcher's container."""
    spec = made["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    found: dict[str, Any] = spec["containers"][0]
    return found


def job(**spec: Any) -> dict[str, Any]:
    made = json.loads(mpijobs.mpijob("OpenMPI", "i:1").partition("---\n")[2])
    made["spec"].update(spec)
    return dict(made)


def worker(made: dict[str, Any]) -> dict[str, Any]:
    template = made["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    return dict(template["spec"]["containers"][0])


def test_what_an_mpijob_asks_for() -> None:
    made = job(runPolicy={"activeDeadlineSeconds": 60, "backoffLimit": 2,
                          "schedulingPolicy": {"queue": "q", "priorityClass": "high",
                                               "scheduleTimeoutSeconds": 5}})  # fmt: skip
    specs = made["spec"]["mpiReplicaSpecs"]
    specs["Launcher"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "A", "value": "1"}, {"name": "S", "valueFrom": {"secretKeyRef": {}}},
    ]  # fmt: skip
    main = specs["Worker"]["template"]["spec"]["containers"][0]
    main["resources"]["limits"]["nvidia.com/gpu"] = 2
    main["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    specs["Worker"]["template"]["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    specs["Worker"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    found = mpijob.manifest_of(made)
    given_ = found.given
    assert (given_["ranks"], given_["nodes"], given_["ranks_per_host"]) == (4, 2, 2)
    assert given_["image"] == "i:1" and given_["mpi"] == "image"
    assert given_["env"] == {"A": "1"}
    assert (given_["time_limit"], given_["retries"]) == (60.0, 2)
    assert (given_["queue"], given_["priority_class"], given_["schedule_timeout"]) == (
        "q", "high", 5.0,
    )  # fmt: skip
    assert given_["memory_per_rank"] == 256 << 20
    assert given_["gpus_per_rank"] == 1
    assert isinstance(found.command, Raw) and found.command.argv[0] == "mpirun"
    assert any("S is not set" in note for note in found.notes)
    ours = objects.job_of(
        JobSpec(found.command, **{k: v for k, v in given_.items() if k != "env"}), RUN
    )
    pod = ours["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    own = pod["containers"][0]
    assert own["name"] == "run" and own["command"][0] == "sh"  # ours, not sshd
    assert own["resources"]["limits"] == {"cpu": "1", "memory": "512Mi", "nvidia.com/gpu": 2}
    assert own["resources"]["requests"]["cpu"] == "1"
    assert "/data" in {one["mountPath"] for one in own["volumeMounts"]}


def test_variants() -> None:
    made = job(runLauncherAsWorker=True)
    assert mpijob.manifest_of(made).given["ranks"] == 6
    alone = job()
    del alone["spec"]["mpiReplicaSpecs"]["Worker"]
    assert mpijob.manifest_of(alone).given["nodes"] == 1
    other = job()
    start = other["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    start["image"] = "l:1"
    start["workingDir"] = "/my work"
    found = mpijob.manifest_of(other)
    assert any("not in l:1" in note for note in found.notes)
    assert isinstance(found.command, Raw) and found.command.shell
    assert found.command.argv[0].startswith("cd '/my work' && mpirun")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made.update(apiVersion="kubeflow.org/v7"), "is not known"),
        (lambda made: made["spec"].pop("mpiReplicaSpecs"), "lacks something"),
        (lambda made: made["spec"].update(mpiReplicaSpecs=[]), "lacks something"),
        (lambda made: made.update(kind="PyTorchJob"), "no MPIJob"),
        (lambda made: starting(made).update(command="mpirun python3 x.py"), "lacks something"),
        (lambda made: starting(made).update(args=["-np", 2]), "lacks something"),
        (lambda made: starting(made).update(image=5), None),  # that of the workers counts
        (lambda made: made["metadata"].update(name=5), "lacks something"),
        (lambda made: made["spec"].update(slotsPerWorker=0), "lacks something"),
        (lambda made: starting(made).update(env=[{"name": "A=B", "value": "c"}]), "lacks some"),
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
    with pytest.raises(UsageError, match=said):
        mpijob.read(file)


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


def launcher(made: dict[str, Any]) -> dict[str, Any]:
    specs = made["spec"]["mpiReplicaSpecs"]["Launcher"]
    return dict(specs["template"]["spec"]["containers"][0])


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
    job_ = JobSpec(Module("train"), ranks=4, nodes=2, image="i:1", queue="q")
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


@pytest.mark.parametrize("change", [{"uid": 5}, {"k8s_patch": "{}"}, {"labels": ("no pair",)}])
def test_what_an_operators_object_cannot_have(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        kubeflow.made_of("mpijob", replace(OURS, **change), RUN, "openmpi5", {})


def test_arguments_without_a_command(tmp_path: Path) -> None:
    """As Flyte's backend makes them. A launcher's line is one; else the entry point has it."""
    made = job()
    del starting(made)["command"]
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(made))
    with pytest.raises(UsageError, match="has no command"):
        jobs.of_manifest(file, [], tmp_path, {"env": {}})
    own = ["mpirun", "-n", "4", "./a.out"]
    assert list(jobs.of_manifest(file, own, tmp_path, {"env": {}}).command.argv) == own
    starting(made)["args"] = own
    file.write_text(json.dumps(made))
    assert list(jobs.of_manifest(file, [], tmp_path, {"env": {}}).command.argv) == own
    found = mpijob.read(file)
    assert any("arguments alone" in note for note in found.notes)
    assert "FLYTE_FAIL_ON_ERROR" not in found.given["env"]
    flyte = ["pyflyte-fast-execute", "--", "mpirun", "python", "e.py", "pyflyte-execute"]
    starting(made)["args"] = flyte
    file.write_text(json.dumps(made))
    found = mpijob.read(file)
    assert found.command is not None and list(found.command.argv) == flyte
    assert found.given["env"]["FLYTE_FAIL_ON_ERROR"] == "true"


def test_references_to_variables(tmp_path: Path) -> None:
    """As Kubernetes puts them in: https://kubernetes.io/docs/tasks/inject-data-application/."""
    made = job()
    starting(made).update(command=["$(RUN)"], args=["$(NO)", "$$(RUN)", "a $(RUN)"])
    starting(made)["env"] = [{"name": "RUN", "value": "mpirun"}]
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(made))
    found = mpijob.read(file)
    assert list(found.command.argv) == ["mpirun", "$(NO)", "$(RUN)", "a mpirun"]


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
    file.write_text("[" * 20000)
    with pytest.raises(UsageError, match="cannot be read"):
        mpijob.read(file)
