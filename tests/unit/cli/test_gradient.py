"""Gradient's command line: what job comes of every flag, and what is said of those without one."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from platform_calls import Made, plainly, watch
from shanty.client.options import OPTIONS
from shanty.integrations.gradient.flags import MULTINODE, OWN, SINGLENODE
from shanty.integrations.platforms.flags import Flag
from shanty.launch.machines import types
from shanty.launch.machines.types import MachineType
from shanty.runtime.errors import NotFoundError
from shanty.runtime.spec import REGISTRY_PASSWORD, JobSpec, Raw

IMAGE = "horovod/horovod:0.18.1-tf1.14.0-torch1.2.0-mxnet1.5.0-py3.6"
LINE = (
    "mpirun --allow-run-as-root -np 1 --hostfile /generated/hostfile -bind-to none -map-by slot "
    "-x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib python examples/keras_mnist.py"
)
# As the platform's page had it, but for the first word.
TUTORIAL = f"""experiments create multinode \\
  --name mpi-test --experimentType MPI \\
  --workerContainer {IMAGE} --workerMachineType p2.xlarge --workerCount 2 \\
  --masterContainer {IMAGE} --masterMachineType p2.xlarge \\
  --masterCommand "{LINE}" \\
  --masterCount 1 --workspace https://github.com/horovod/horovod.git --apiKey XXXX --vpc
""".replace("\\\n", "")
MULTI = (
    *("experiments", "create", "multinode", "--experimentType", "MPI"),
    *("--workerMachineType", "small", "--workerCount", "2"),
    *("--masterCommand", "mpirun -np 3 python x.py", "--workspace", "."),
)
SINGLE = (
    *("experiments", "create", "singlenode", "--machineType", "small"),
    *("--command", "python x.py", "--workspace", "."),
)


@pytest.fixture
def made(home: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return watch(home, monkeypatch)


def test_the_line_of_the_tutorial(cli: Cli, made: Made, home: Path) -> None:
    done = cli(*shlex.split(TUTORIAL))
    assert done.code == 0, done.err
    assert made.job == JobSpec(
        Raw((LINE,), shell=True),
        workdir=str(home / "fetched"),
        source="https://github.com/horovod/horovod.git",
        name="mpi-test",
        machines=(("p2.xlarge", 1), ("p2.xlarge", 2)),
        image=IMAGE,
        mounts=(("run:artifacts", "/artifacts", "rw"),),
    )
    assert made.how["detach"] is True
    assert done.out == "New experiment created with ID: 20240101-000001-bcdf\n"
    notes = done.err.splitlines()
    assert [note for note in notes if "--apiKey" in note] == [
        note for note in notes if "--vpc" in note
    ]
    assert "XXXX" not in done.out + done.err


def test_older_spellings(cli: Cli, made: Made) -> None:
    older = TUTORIAL.replace("--workspace ", "--workspaceUrl ")
    older = older.replace("--experimentType ", "--experimentTypeId ")
    assert cli(*shlex.split(older), "--projectHandle", "p1", "--triggerEventId", "3").code == 0
    assert made.job.source == "https://github.com/horovod/horovod.git"
    assert made.job.tags == ("project:p1",)


@pytest.mark.parametrize("verb", ["run", "createAndStart"])
@pytest.mark.parametrize("no_logs", [False, True])
def test_run_shows_the_output(cli: Cli, made: Made, verb: str, no_logs: bool) -> None:
    done = cli("experiments", verb, *SINGLE[2:], *(["--no-logs"] * no_logs))
    assert done.code == 0, done.err
    assert made.how["detach"] is no_logs
    assert done.out.startswith("New experiment created and started with ID: 2024")


# What each flag that does something changes of the job, or of what is around it.
WITH_IMAGE = ("--container", "img")
WITH_IMAGES = ("--masterContainer", "m", "--workerContainer", "w")
DOES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "--name": (("--name", "My first one"), {"name": "My-first-one"}),
    "--tag": (("--tag", "a", "--tag", "b"), {"tags": ("a", "b")}),
    "--tags": (("--tags", "a, b,a"), {"tags": ("a", "b")}),
    "--projectId": (("--projectId", "p"), {"tags": ("project:p",)}),
    "--workspace": (("--workspace", "sub"), {"workdir": "sub", "source": None}),
    "--workspaceRef": (
        ("--workspace", "https://github.com/a/b", "--workspaceRef", "v1"),
        {"source": "git+https://github.com/a/b@v1"},
    ),
    "--workspaceUsername": (
        ("--workspace", "https://a/b.git", "--workspaceUsername", "u", "--workspacePassword", "p"),
        {"source": "https://a/b.git"},
    ),
    "--workspacePassword": (
        ("--workspace", "https://a/b.zip", "--workspaceUsername", "u", "--workspacePassword", "p"),
        {"source": "https://a/b.zip"},
    ),
    "--workingDirectory": (("--workingDirectory", "sub"), {"command": "cd sub || exit; "}),
    "--artifactDirectory": (
        ("--artifactDirectory", "/out"), {"mounts": (("run:artifacts", "/out", "rw"),)},
    ),
    "--experimentEnv": (
        ("--experimentEnv", '{"A": "x", "EPOCHS": 5, "B": true}'),
        {"env": {"A": "x", "EPOCHS": "5", "B": "true"}},
    ),
    "--datasetUri": (
        ("--datasetUri", "/srv/mnist"),
        {"mounts": (("/srv/mnist", "/data/mnist", "ro"), ("run:artifacts", "/artifacts", "rw"))},
    ),
    "--datasetName": (
        ("--datasetUri", "/srv/mnist", "--datasetName", "digits"),
        {"mounts": (("/srv/mnist", "/data/digits", "ro"), ("run:artifacts", "/artifacts", "rw"))},
    ),
    "--command": (("--command", "echo 1 > x"), {"command": "echo 1 > x"}),
    "--machineType": (("--machineType", "p2.xlarge"), {"machines": (("p2.xlarge", 1),)}),
    "--container": (("--container", "img2"), {"image": "img2"}),
    "--registryUsername": (("--registryUsername", "u"), {"registry_user": "u"}),
    "--registryPassword": (
        ("--registryUsername", "u", "--registryPassword", "pw"),
        {"registry_password": f"env:{REGISTRY_PASSWORD}"},
    ),
    "--registryUrl": (("--registryUrl", "https://reg.example.org:5000/v1/"),
                      {"image": "reg.example.org:5000/img"}),
    "--experimentType": (("--experimentType", "mpi"), {}),
    "--masterCommand": (("--masterCommand", "sh all.sh"), {"command": "sh all.sh"}),
    "--masterMachineType": (
        ("--masterMachineType", "p2.xlarge"), {"machines": (("p2.xlarge", 1), ("small", 2))},
    ),
    "--masterCount": (("--masterCount", "2"), {"machines": (("small", 2), ("small", 2))}),
    "--workerMachineType": (
        ("--workerMachineType", "p2.xlarge"), {"machines": (("p2.xlarge", 1), ("p2.xlarge", 2))},
    ),
    "--workerCount": (("--workerCount", "4"), {"machines": (("small", 1), ("small", 4))}),
    "--masterContainer": (("--masterContainer", "m2"), {"image": "w", "master_image": "m2"}),
    "--workerContainer": (("--workerContainer", "m"), {"image": "m", "master_image": None}),
    "--masterRegistryUsername": (("--masterRegistryUsername", "u"), {"registry_user": "u"}),
    "--masterRegistryPassword": (
        ("--masterRegistryUsername", "u", "--masterRegistryPassword", "pw"),
        {"registry_user": "u", "registry_password": f"env:{REGISTRY_PASSWORD}"},
    ),
    "--masterRegistryUrl": (("--masterRegistryUrl", "reg:5000"), {"master_image": "reg:5000/m"}),
    "--workerRegistryUsername": (("--workerRegistryUsername", "u"), {"registry_user": "u"}),
    "--workerRegistryPassword": (
        ("--workerRegistryUsername", "u", "--workerRegistryPassword", "pw"),
        {"registry_user": "u", "registry_password": f"env:{REGISTRY_PASSWORD}"},
    ),
    "--workerRegistryUrl": (("--workerRegistryUrl", "docker.io"), {"image": "w"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "several"),
    [(f, n) for flags, n in ((MULTINODE, True), (SINGLENODE, False)) for f in flags],
    ids=lambda each: each.name if isinstance(each, Flag) else "multi" if each else "single",
)
def test_every_flag(cli: Cli, made: Made, flag: Flag, several: bool) -> None:
    Path("sub").mkdir()
    base = (*MULTI, *WITH_IMAGES) if several else (*SINGLE, *WITH_IMAGE)
    assert cli(*base).code == 0
    plain = plainly(made.jobs.pop())
    if flag.kind == "does":
        words, wanted = DOES[flag.name]
        done = cli(*base, *words)
        assert done.code == 0, done.err
        got = plainly(made.job)
        for key, value in wanted.items():
            if key == "workdir":
                value = str(Path(value).absolute())
            if key == "command" and value.endswith("; "):
                value += plain["command"]
            assert got[key] == value
        same = set(plain) - set(wanted) - {"workdir", "source", "registry_user"}
        same -= {"registry_password"} if "registry_user" in wanted else set()
        assert {key: got[key] for key in same} == {key: plain[key] for key in same}
        return
    name = flag.name.split("/")[0]
    alone = flag.click.get("is_flag") or "/" in flag.name
    done = cli(*base, name, *([] if alone else ["7"]))
    if flag.kind == "refused":
        assert done.code == 2
        assert flag.name in done.err and flag.fix in done.err
        assert not made.jobs
    else:
        assert done.code == 0, done.err
        assert plainly(made.job) == plain
        (said,) = [line for line in done.err.splitlines() if "left out" in line]
        assert flag.name in said and flag.text in said


@pytest.mark.parametrize("name", OWN)
def test_what_shanty_adds(cli: Cli, made: Made, name: str) -> None:
    written = {
        "mpi": "intel", "runtime": "podman", "mounts": "/a:/b:ro", "gpus": "0,1",
        "time_limit": "1h", "retries": "2", "priority": "-3",
    }  # fmt: skip
    flag = OPTIONS[name].flags.split()[-1]
    words = [flag, written[name]] if name in written else [flag]
    assert cli(*SINGLE, *WITH_IMAGE, *words).code == 0
    values = {"retries": 2, "priority": -3, "time_limit": 3600.0, "share": True}
    wanted: Any = values.get(name, written.get(name))
    if name == "mounts":
        wanted = (("/a", "/b", "ro"), ("run:artifacts", "/artifacts", "rw"))
    assert getattr(made.job, name) == wanted


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    ((*MULTI, "--experimentType", "GRPC"), "--experimentType GRPC has no counterpart"),
    ((*MULTI, "--experimentType", "TCP"), "takes MPI, not 'TCP'"),
    (("experiments", "create", "multinode"), "--masterCommand and --workerMachineType and"),
    (("experiments", "run", "singlenode"), "--command and --machineType must be given"),
    ((*MULTI, "--masterContainer", "m"), "--workerContainer must be given, too"),
    ((*MULTI, "--workerContainer", "w"), "--masterContainer must be given, too"),
    ((*MULTI, "--workerMachineType", "smal"), "did you mean small?"),
    ((*SINGLE, "--machineType", "huge"), "known are p2.xlarge, pods, small"),
    ((*SINGLE, "--artifactDirectory", "/out"), "is for containers, and there is none"),
    ((*SINGLE, *WITH_IMAGE, "--artifactDirectory", "out"), "is not absolute"),
    ((*SINGLE, "--datasetUri", "/srv/x"), "which needs a container"),
    ((*SINGLE, *WITH_IMAGE, "--datasetUri", "s3://b/x"), "shanty does not read S3"),
    ((*SINGLE, "--datasetName", "x"), "has no --datasetUri"),
    ((*SINGLE, "--experimentEnv", "{"), "invalid JSON"),
    ((*SINGLE, "--experimentEnv", "[1]"), "is not a JSON object"),
    ((*SINGLE, "--experimentEnv", '{"A": "secret:x"}'), "one of Gradient's secrets"),
    ((*SINGLE, "--workspace", "s3://b/x.zip"), "does not read S3"),
    ((*SINGLE, "--workspaceRef", "v1"), "--workspaceRef is for git"),
    ((*SINGLE, "--workspace", "https://a/b.zip", "--workspaceRef", "1"), "is an archive"),
    ((*SINGLE, "--workspaceUsername", "u"), "is for a workspace by http"),
    ((*SINGLE, "--workspace", "none", "--workspacePassword", "p"), "without a workspace"),
    ((*SINGLE, "--workspace", "git@h:a/b.git", "--workspaceUsername", "u"), "by ssh it is a key"),
    ((*SINGLE, "--workspace", "https://a/b.git", "--workspaceUsername", "u"), "Password must be"),
    ((*SINGLE, "--workingDirectory", "nowhere"), "the workspace has no folder nowhere"),
    ((*SINGLE, "--registryUsername", "u"), "there is none"),
    ((*SINGLE, "--registryUrl", "reg:5000"), "for an image, and none is named"),
    ((*SINGLE, "--container", "a.b/c", "--registryUrl", "reg:5000"), "the image is of a.b"),
    ((*SINGLE, *WITH_IMAGE, "--registryPassword", "p"), "--registryUsername must be given"),
    ((*SINGLE, *WITH_IMAGE, "--registryUsername", "u", "--registryPassword", "env:NO_SUCH"),
     "NO_SUCH is not set"),
    ((*MULTI, *WITH_IMAGES, "--masterRegistryUsername", "u", "--workerRegistryUsername", "v"),
     "--masterRegistryUsername and --workerRegistryUsername differ"),
    ((*MULTI, "--workerCount", "-1"), "-1"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[says for _, says in MISTAKES])
def test_mistakes(cli: Cli, made: Made, words: tuple[str, ...], says: str) -> None:
    done = cli(*words)
    assert done.code in (2, 66), done
    assert says in " ".join(done.err.split())
    assert not made.jobs


def test_without_any_machine_types(cli: Cli, made: Made, home: Path) -> None:
    for name in types.names(home):
        types.remove(name, home)
    done = cli(*SINGLE)
    assert done.code == NotFoundError.exit_code
    assert "shanty machines add small --on local" in done.err
    assert "--on ann@10.0.0.2" in done.err


def test_passwords_go_by_the_environment_only(
    cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SINGLE, *WITH_IMAGE, "--registryUsername", "u", "--registryPassword")
    done = cli(*words, "hunter2")
    assert made.environ[REGISTRY_PASSWORD] == "hunter2"
    assert "hunter2" not in json.dumps(made.job.to_json()) + done.out + done.err
    assert "others on this machine can read --registryPassword" in done.err
    monkeypatch.setenv("MINE", "hunter3")
    done = cli(*words, "env:MINE")
    assert made.environ[REGISTRY_PASSWORD] == "hunter3"
    assert "others on this machine" not in done.err
    assert REGISTRY_PASSWORD not in os.environ


def test_the_login_of_a_workspace(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t")
    words = ("--workspace", "https://h/a", "--workspaceUsername", "u", "--workspacePassword")
    assert cli(*SINGLE, *words, "env:TOKEN").code == 0
    assert made.fetched == [("git+https://h/a", ("u", "t"))]
    assert made.job.source == "git+https://h/a"


@pytest.mark.parametrize(
    ("folder", "before"),
    [
        ("/paperspace", ""),
        ("/paperspace/sub", "cd sub || exit; "),
        ("./sub/", "cd sub || exit; "),
        ("/app", "cd /app || exit; "),
    ],
)
def test_where_the_command_runs(cli: Cli, made: Made, folder: str, before: str) -> None:
    Path("sub").mkdir()
    assert cli(*SINGLE, "--workingDirectory", folder).code == 0
    assert made.job.command == Raw((before + "python x.py",), shell=True)


def test_without_a_workspace_the_folder_is_empty(cli: Cli, made: Made) -> None:
    words = [word for word in SINGLE if word not in ("--workspace", ".")]
    done = cli(*words)
    assert "in an empty folder" in done.err
    assert list(Path(made.job.workdir).iterdir()) == []
    assert "in an empty folder" not in cli(*words, "--workspace", "none").err


def test_pods_have_no_folder_for_artifacts(cli: Cli, made: Made) -> None:
    assert cli(*SINGLE, "--machineType", "pods", *WITH_IMAGE).code == 0
    assert made.job.mounts == ()


def test_a_line_for_dmlc_submit(cli: Cli, made: Made) -> None:
    words = ("--command", "/dmlc-core/tracker/dmlc-submit --num-workers 3 python x.py")
    assert cli(*SINGLE, *words).code == 0
    assert made.job.words() == ("dmlc-submit --num-workers 3 python x.py",)


def test_a_dry_run_makes_nothing(cli: Cli, home: Path) -> None:
    types.save(MachineType("small", "local"), home)
    done = cli(*SINGLE, "--dry-run")
    assert done.code == 0, done.err
    assert "# machines 1 of small" in done.out
    assert not (home / "runs").exists()


def test_gradients_own_names_for_machines(cli: Cli, made: Made) -> None:
    for name in ("GPU+", "P4000", "C7", "Free-GPU"):
        assert cli("machines", "add", name, "--on", "local").code == 0
        assert cli(*SINGLE, "--machineType", name).code == 0
        assert made.jobs.pop().machines == ((name, 1),)
