"""Clusterone's command line: what job comes of every flag, and the words that go with it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli, make_run
from platform_calls import ID, Made, plainly, watch
from shanty.integrations.clusterone.flags import DISTRIBUTED, SINGLE
from shanty.integrations.clusterone.job import starts_ranks
from shanty.integrations.platforms.flags import Flag
from shanty.launch.content import sources
from shanty.runtime.spec import JobSpec, Program, Raw, Script, State

LINE = (
    "mpirun --allow-run-as-root -np 3 --hostfile /kube-openmpi/generated/hostfile -bind-to none "
    "-map-by slot -mca pml ob1 -mca btl ^openib python openmpi/horovod/main.py"
)
# As the platform's page had it, but for the first word.
TUTORIAL = f"""create job distributed \\
  --project ann/clusterone-tutorials \\
  --name horovod-job \\
  --docker-image horovod-0.15.0-cpu-py36-tf1.11.0 \\
  --ps-docker-image horovod-0.15.0-cpu-py36-tf1.11.0 \\
  --worker-type small \\
  --ps-type small \\
  --worker-replicas 2 \\
  --ps-replicas 1 \\
  --time-limit 1h \\
  --command "{LINE}" \\
  --setup-command "pip install clusterone"
""".replace("\\\n", "")
MANY = ("create", "job", "distributed", "--worker-type", "small", "--command", "mpirun a")
ONE = ("create", "job", "single", "--instance-type", "small", "--command", "python x.py")


@pytest.fixture
def made(home: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return watch(home, monkeypatch)


def test_the_line_of_the_tutorial(cli: Cli, made: Made) -> None:
    done = cli(*shlex.split(TUTORIAL))
    assert done.code == 0, done.err
    setup = "mpirun -np 3 -npernode 1 --hostfile \"$HOSTFILE\" sh -c 'pip install clusterone'"
    assert made.job == JobSpec(
        Raw((f"({setup}) || exit; {LINE}",), shell=True),
        workdir=str(Path.cwd()),
        name="horovod-job",
        tags=("project:ann/clusterone-tutorials",),
        machines=(("small", 1), ("small", 2)),
        image="horovod-0.15.0-cpu-py36-tf1.11.0",
        time_limit=3600.0,
    )
    assert done.out == f"New job created with ID: {ID}\n"
    assert "left out: --ps-replicas (there is one master" in done.err


# What each flag that does something changes of the job.
DOES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "--name": (("--name", "a b"), {"name": "a-b"}),
    "--tags": (("--tags", "a,b"), {"tags": ("a", "b")}),
    "--project": (("--project", "ann/p"), {"tags": ("project:ann/p",)}),
    "--project-path": (("--project-path", "https://h/a.git"), {"source": "https://h/a.git"}),
    "--commit": (("--commit", "abc"), {"source": "git+file://HERE@abc"}),
    "--command": (("--command", "mpirun b"), {"command": "mpirun b"}),
    "--setup-command": (("--setup_command", "make"), {"command": "BEFORE"}),
    "--package-path": (("--package-path", "sub"), {"command": "cd sub && BEFORE"}),
    "--requirements": (("--requirements", "needs.txt"), {"command": "BEFORE"}),
    "--datasets": (
        ("--datasets", "/data/x, /data/y"),
        {"mounts": (("/data/x", "/data/x", "ro"), ("/data/y", "/data/y", "ro"))},
    ),
    "--docker-image": (("--docker-image", "i2"), {"image": "i2"}),
    "--gpu-count": (("--gpu-count", "2"), {"gpus": "0,1"}),
    "--time-limit": (("--time-limit", "20h12m"), {"time_limit": 72720.0}),
    "--worker-type": (
        ("--worker-type", "p2.xlarge"), {"machines": (("p2.xlarge", 1), ("p2.xlarge", 2))},
    ),
    "--worker-replicas": (("--worker-replicas", "5"), {"machines": (("small", 1), ("small", 5))}),
    "--ps-type": (("--ps-type", "p2.xlarge"), {"machines": (("p2.xlarge", 1), ("small", 2))}),
    "--ps-docker-image": (("--ps-docker-image", "m"), {"master_image": "m"}),
    "--instance-type": (("--instance-type", "p2.xlarge"), {"machines": (("p2.xlarge", 1),)}),
}  # fmt: skip
SETUPS = {"--setup-command": "make", "--requirements": "pip install -r needs.txt"}


@pytest.mark.parametrize(
    ("flag", "several"),
    [(f, n) for flags, n in ((DISTRIBUTED, True), (SINGLE, False)) for f in flags],
    ids=lambda each: each.name if isinstance(each, Flag) else "many" if each else "one",
)
def test_every_flag(cli: Cli, made: Made, home: Path, flag: Flag, several: bool) -> None:
    Path("needs.txt").touch()
    base = (*(MANY if several else ONE), "--docker-image", "img")
    assert cli(*base).code == 0
    plain = plainly(made.jobs.pop())
    if flag.kind != "does":
        done = cli(*base, flag.name, "1")
        assert plainly(made.job) == plain
        (said,) = [line for line in done.err.splitlines() if "left out" in line]
        assert f"{flag.name} ({flag.text})" in said
        return
    if flag.name == "--module":
        assert "both say what to run" in cli(*base, "--module", "x").err
        return
    words, wanted = DOES[flag.name]
    done = cli(*base, *words)
    assert done.code == 0, done.err
    got = plainly(made.job)
    for key, value in wanted.items():
        if isinstance(value, str):
            value = value.replace("HERE", str(Path.cwd())).replace("BEFORE", plain["command"])
        if flag.name in SETUPS:
            setup = SETUPS[flag.name]
            each = f'mpirun -np 3 -npernode 1 --hostfile "$HOSTFILE" sh -c {shlex.quote(setup)}'
            value = f"({each if several else setup}) || exit; {value}"
        assert got[key] == value
    same = set(plain) - set(wanted) - {"workdir"}
    assert {key: got[key] for key in same} == {key: plain[key] for key in same}


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("--command", "python train.py --x 1"), Program(("python", "train.py", "--x", "1"))),
        (("--command", "train.py"), Script("train.py")),
        (("--command", "A=1 python train.py"), Program(("sh", "-c", "A=1 python train.py"))),
        (("--module", "m", "--epochs", "3"), Program(("python", "-m", "m", "--epochs", "3"))),
        ((), Program(("python", "-m", "main"))),
    ],
)
def test_a_command_without_a_launcher_is_a_rank_on_each_machine(
    cli: Cli, made: Made, words: tuple[str, ...], command: object
) -> None:
    done = cli(*MANY[:5], *words)
    assert done.code == 0, done.err
    assert made.job.command == command
    assert (made.job.ranks, made.job.ranks_per_host) == (3, 1)
    assert "each machine runs the command as one rank" in done.err


def test_a_module_of_one_machine(cli: Cli, made: Made) -> None:
    assert cli(*ONE[:5], "--module", "m", "--package-path", "p", "--lr", "a b").code == 0
    assert made.job.words() == ("cd p && python -m m --lr 'a b'",)


def test_setup_without_a_container_is_left_to_the_user(cli: Cli, made: Made) -> None:
    done = cli(*ONE, "--setup-command", "pip install x")
    assert "run it once, `pip install x`" in done.err
    assert made.job.words() == ("python x.py",)
    assert made.job.mounts == ()


@pytest.mark.parametrize(("count", "numbers"), [("0", ""), ("2", "0,1")])
def test_gpus_without_a_container(cli: Cli, made: Made, count: str, numbers: str) -> None:
    assert cli(*ONE, "--gpu-count", count).code == 0
    assert made.job.env == {"CUDA_VISIBLE_DEVICES": numbers}
    assert made.job.gpus is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "job", "distributed"), "--worker-type must be given"),
        (("create", "job", "single"), "--instance-type must be given"),
        ((*ONE, "--instance-type", "big"), "machine type 'big' not found"),
        ((*ONE, "--datasets", "ann/mnist"), "one of Clusterone's datasets"),
        ((*ONE, "--datasets", "s3://b/x"), "is not read"),
        ((*ONE, "--requirements", "none.txt"), "none.txt not found"),
        ((*ONE, "--frobnicate", "1"), "unknown flag --frobnicate"),
        ((*ONE, "--time-limit", "soon"), "invalid time 'soon'"),
        ((*MANY, "--ps-docker-image", "x"), "--docker-image must be given, too"),
        ((*MANY, "--worker-replicas", "0"), "0"),
        ((*MANY[:5], "--command", "python no.py"), "script 'no.py' not found"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_mistakes(cli: Cli, made: Made, words: tuple[str, ...], says: str) -> None:
    done = cli(*words)
    assert done.code in (2, 66), done
    assert says in " ".join(done.err.split())
    assert not made.jobs


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mpirun -np 2 x", True),
        ("cd a && /opt/bin/mpirun x", True),
        ("A=1 horovodrun -np 2 x", True),
        ("python /dmlc-core/tracker/dmlc-submit --cluster mpi x", True),
        ("torchrun x.py", True),
        ("python mpirun.py", False),
        ("python x.py --launcher=mpirun-like", False),
        ("python -m main", False),
    ],
)
def test_lines_with_a_launcher(line: str, wanted: bool) -> None:
    assert starts_ranks(line) is wanted


def test_the_code_of_a_commit(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = sources.open_workspace
    made = watch(home, monkeypatch)
    monkeypatch.setattr(sources, "open_workspace", really)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "1"]):
        subprocess.run(["git", *words], check=True)
    Path("later.py").touch()
    (commit,) = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).split()
    done = cli(*ONE, "--commit", commit[:8])
    assert done.code == 0, done.err
    found = sorted(path.name for path in Path(made.job.workdir).iterdir())
    assert found == [".git", "train.py"]


# ------------------------------------------------------------------------ start, stop, get, rm


def test_a_job_is_started_by_its_path(cli: Cli, made: Made, home: Path) -> None:
    """`experiments start` does the same, and its tests have more."""
    make_run(home, 1, State.SUCCEEDED, name="first")
    assert cli("start", "job", "-p", "ann/project/first").out.startswith("New job created and")
    assert made.job.name == "first"
    make_run(home, 2, State.RUNNING, name="on")
    assert "job 20240101-000002-bcdf is on" in cli("start", "job", "project/on").err


def test_words_for_jobs(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, State.SUCCEEDED, name="first")
    assert run.id in cli("get", "jobs").out
    assert cli("get", "job", "p/first").out.startswith(f"run        {run.id}")
    assert "has ended already" in cli("stop", "job", "p/first").err
    assert cli("get", "events").code == 0
    assert cli("rm", "job", "p/first").code == 0
    assert not run.path.exists()


def test_a_run_that_is_called_job(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, State.SUCCEEDED, name="job")
    assert f"run {run.id} has ended already" in cli("stop", "job").err


def test_start_is_not_a_verb_otherwise(cli: Cli) -> None:
    done = cli("start", "train.py")
    assert done.code == 2
    assert "did you mean: shanty run train.py" in done.err
