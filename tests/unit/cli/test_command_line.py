"""The line that a job is written as is read as the same job again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import Cli
from shanty import program
from shanty.client import command_line
from shanty.client.command import make_command
from shanty.client.command_line import FLAGS, line, looks_secret, split
from shanty.client.options import OPTIONS
from shanty.client.terminal import start
from shanty.dashboard import form as forms
from shanty.dashboard.models import Form, Source
from shanty.launch.options.known import BUILTIN
from shanty.runtime.spec import JobSpec, Module, Program, Raw, Script

Read = Callable[[str], JobSpec]


@pytest.fixture
def read(home: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """What `shanty run` would start."""
    found: list[JobSpec] = []
    monkeypatch.setattr(start, "start", lambda _here, job, *_, **_how: found.append(job) or 0)

    def call(text: str) -> JobSpec:
        monkeypatch.setattr(sys, "argv", shlex.split(text))
        with pytest.raises(SystemExit) as end:
            program.main()
        assert end.value.code in (0, None)
        return found.pop()

    return call


def test_every_field_has_the_option_that_the_command_line_has() -> None:
    generic = {each.name for each in fields(JobSpec)} - {"command", "debug_rank", "options"}
    assert set(FLAGS) == generic.union(*(each.fields for each in BUILTIN))
    for name, flag in FLAGS.items():
        assert flag in OPTIONS[name].flags.split(), name


HERE = JobSpec(Script("train.py", ("--lr", "0.1", "a b", "-e", "X_TOKEN=1")))
JOBS = [
    HERE,
    replace(HERE, ranks=4, ranks_per_host=2, cpus_per_rank=1, oversubscribe=True, name="n-1"),
    replace(HERE, memory_per_rank=123456789, gpus_per_rank=0, tf1=True, retries=3),
    replace(HERE, time_limit=90.5, start_timeout=1200.0, stall_after=0.0, on_stall="stop"),
    replace(HERE, stall_after=3.25, alone="ok", tags=("a", "b c", "é'\"")),
    replace(HERE, env={"A": "x y", "B": "", "C": "$HOME '\"\n", "D": "=", "é": "ü"}),
    replace(HERE, on="a,b:4,ann@10.0.0.3", mpi="mpich", packages="sync"),
    replace(
        HERE,
        on="slurm:hpc",
        nodes=2,
        options={"partition": "p", "account": "a", "qos": "q", "constraint": "x&y"},
    ),
    replace(
        HERE,
        on="slurm",
        options={"reservation": "r", "exclusive": True, "requeue": True, "slurm": "--mem 4G"},
    ),
    replace(
        HERE,
        on="k8s",
        options={"uid": 0, "node_selector": ("a=b", "c=d"), "tolerations": ("k=v:NoSchedule",)},
    ),
    replace(
        HERE,
        on="k8s",
        options={"service_account": "s", "priority_class": "p", "pull_secrets": ("a", "b")},
    ),
    replace(
        HERE,
        on="k8s",
        options={"labels": ("a=b",), "queue": "q", "operator": "mpijob", "keep": True},
    ),
    replace(
        HERE,
        on="k8s",
        image="img:1",
        mounts=(("pvc:c", "/d", "ro"),),
        options={"schedule_timeout": 90.0},
    ),
    replace(HERE, image="img:1", master_image="other:2", runtime="podman", gpus="0,1", mpi="image"),
    replace(HERE, image="i", mounts=(("/a", "/b", "rw"), ("/c d", "/e", "ro")), registry_user="u"),
    replace(HERE, image="i", registry_password="env:PW"),
    replace(HERE, hostfile="/etc/hosts file", python="/usr/bin/python3"),
    replace(HERE, command=Module("package.train", ("-m", "--x=1"))),
    replace(HERE, command=Program(("./a.out", "-n", "4"))),
    replace(HERE, command=Program(("python", "-c", "print('hi'); x=1"))),
    replace(HERE, command=Raw(("mpirun", "-np", "2", "-x", "A", "python", "train.py"))),
    replace(HERE, command=Raw(("mpirun -np 2 python train.py | tee 'a b'",), shell=True)),
    replace(HERE, command=Raw(("bash", "x.sh", "--raw"))),
    replace(HERE, command=Script("./-odd.py")),
]


@pytest.mark.parametrize("job", JOBS, ids=range(len(JOBS)))
def test_a_line_is_read_as_the_job_that_it_was_made_of(
    read: Read, job: JobSpec, tmp_path: Path
) -> None:
    (tmp_path / "work" / "-odd.py").write_text("")
    job = replace(job, workdir=str(tmp_path / "work"))
    assert read(line(job)) == job


def test_a_patch_goes_by_a_file(read: Read, tmp_path: Path) -> None:
    job = replace(
        HERE, workdir=str(tmp_path / "work"), on="k8s", options={"k8s_patch": '{"spec": {"a": 1}}'}
    )
    text = line(job)
    assert '--k8s-patch <(echo \'{"spec": {"a": 1}}\')' in text
    file = tmp_path / "patch.json"
    file.write_text(job.options["k8s_patch"])
    typed = text.replace('<(echo \'{"spec": {"a": 1}}\')', str(file))
    assert read(typed) == job


def test_of_secrets_only_the_names_are_written(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(HERE, workdir=str(tmp_path / "work"), env={"HF_TOKEN": "s3cr3t", "A": "1"})
    assert "s3cr3t" not in line(job)
    monkeypatch.setenv("HF_TOKEN", "s3cr3t")
    assert read(line(job)) == job


def test_what_looks_secret() -> None:
    for name in (
        "HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PGPASSWORD",
        "ssh_private_key", "BASIC_AUTH", "SENTRY_DSN", "client_secret", "OPENAI_KEY", "MYSQL_PWD",
        "OPENAI_APIKEY", "SHANTY_REGISTRY_PASSWORD", "DB_PASS",
    ):  # fmt: skip
        assert looks_secret(name), name
    for name in ("PATH", "PWD", "KEYS", "LR", "AUTHOR", "TOKENIZERS_PARALLELISM", "MONKEY"):
        assert not looks_secret(name), name


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(args=st.lists(TEXTS, max_size=4), env=TEXTS, tag=TEXTS)
def test_any_text_comes_through(
    read: Read, tmp_path: Path, args: list[str], env: str, tag: str
) -> None:
    command = Script("train.py", tuple(args))
    folder = str(tmp_path / "work")
    job = JobSpec(command, workdir=folder, env={"A": env}, tags=(tag,))
    assert read(line(job)) == job


# --------------------------------------------------------------------------------------- forms


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.py --x 1", ["train.py", "--x", "1"]),
        ("mpirun -np 2 --hostfile $HOSTFILE python t.py",
         ["mpirun", "-np", "2", "--hostfile", "$HOSTFILE", "python", "t.py"]),
        ("a.py 'x; y' \"(z)\"", ["a.py", "x; y", "(z)"]),
        ("cd x && python t.py", ["cd x && python t.py"]),
        ("python t.py > out.txt", ["python t.py > out.txt"]),
        ("python t.py `nproc`", ["python t.py `nproc`"]),
        ("python t.py $(nproc)", ["python t.py $(nproc)"]),
        ("python a.py\npython b.py", ["python a.py\npython b.py"]),
        ("  ", []),
    ],
)  # fmt: skip
def test_the_words_of_a_command(text: str, words: list[str]) -> None:
    assert split(text) == words


@pytest.mark.parametrize(
    "command",
    ["train.py --lr 0.1", "-m package.train -v", "mpirun -np 2 python train.py", "./a.out -n 4",
     "python train.py | tee log", "train.py 'a b' \"c\""],
)  # fmt: skip
def test_a_form_is_read_as_its_line_says(read: Read, tmp_path: Path, command: str) -> None:
    """What the page shows is what it starts: both come to the same job."""
    form = Form(
        name="web", source=Source(path=str(tmp_path / "work")), command=command, ranks=2,
        tags=["a b"], env={"A": "1 2"}, time_limit="2h", retries=1, mpi="mpich",
    )  # fmt: skip
    shown = read(forms.line(form))
    started = ["shanty", "run", *forms.words(form, shown=False), *forms.command(command)]
    assert read(shlex.join(started)) == shown
    assert (shown.name, shown.ranks, shown.time_limit, shown.tags) == ("web", 2, 7200.0, ("a b",))
    assert shown.env == {"A": "1 2"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ranks": 8}, {"ranks": 8}),
        ({"name": None, "tags": ["z"]}, {"name": None, "tags": ("z",)}),
        ({"command": "train.py --lr 9"}, {"command": Script("train.py", ("--lr", "9"))}),
        ({"env": {"HF_TOKEN": "••••••", "B": "2"}}, {"env": {"HF_TOKEN": "old", "B": "2"}}),
        ({"env": {}}, {"env": {}}),
        ({"on": None, "machines": None, "image": None}, {}),
        ({"on": "a,b"}, {"on": "a,b", "hostfile": None}),
        ({"time_limit": "1h", "mpi": "mpich"}, {"time_limit": 3600.0, "mpi": "mpich"}),
    ],
    ids=range(8),
)
def test_a_run_again_differs_where_it_was_changed(
    read: Read, tmp_path: Path, changes: dict, expected: dict
) -> None:
    job = JobSpec(
        Script("train.py", ("-n", "3")), ranks=2, name="old", tags=("a",), cpus_per_rank=1,
        workdir=str(tmp_path / "work"), env={"HF_TOKEN": "old"}, alone="ok", hostfile="/hosts",
    )  # fmt: skip
    words = forms.again(job, Form(**changes))
    assert read(shlex.join(["shanty", "run", *words])) == replace(job, **expected)


def test_the_form_of_a_run_makes_it_again(read: Read, tmp_path: Path) -> None:
    job = JobSpec(
        Script("train.py", ("--lr", "a b")), ranks=2, name="old", tags=("a",), image="img",
        workdir=str(tmp_path / "work"), env={"HF_TOKEN": "s3cr3t", "LR": "1"}, retries=1,
        mounts=(("/a", "/b", "ro"), ("/c", "/d", "rw")), time_limit=90.0, mpi="mpich",
        machines=(("s", 1), ("big", 2)), priority=3,
    )  # fmt: skip
    form = forms.form_of(job)
    assert "s3cr3t" not in form.model_dump_json()
    for each in (job, replace(job, machines=(), priority=0, on="a,b")):
        form = forms.form_of(each)
        words = forms.again(each, form)  # all fields are given, and none has changed
        assert read(shlex.join(["shanty", "run", *words])) == each
    assert forms.form_of(replace(job, source="https://a/b.git")).source.url == "https://a/b.git"


def test_problems_of_a_form(home: Path) -> None:
    form = Form(command="a 'b", source=Source(path="/no/such"), machine_type="p2", ranks=0)
    found = {each.field: each.what for each in forms.problems(form, home)}
    assert set(found) == {"command", "source", "machine_type", "ranks"}
    assert found["command"] == "a quote is not closed"
    assert forms.problems(Form(command="x", source=Source(path="/tmp")), home) == []
    assert forms.line(form).endswith("a 'b")
    assert command_line.split("x") == ["x"]
    assert make_command(["x"], Path("/tmp"), raw=False) == Program(("x",))


def test_users(cli: Cli, home: Path) -> None:
    nobody = cli("serve")
    assert nobody.code == 2
    assert "shanty serve users add NAME --role admin" in nobody.err
    done = cli("serve", "users", "add", "ann", "--role", "user", "--may", "see", "all")
    token = done.out.strip()
    assert (done.code, len(token)) == (0, 43)
    assert token not in (home / "users.json").read_text()
    assert cli("serve", "users", "add", "ann", "--role", "admin").code == 2
    assert cli("serve", "users", "add", "eve", "--role", "viewer").code == 0
    assert cli("serve", "users", "list").out.split()[3:] == [
        "ann",
        "user",
        "all",
        "eve",
        "viewer",
        "all",
    ]
    assert "hash" not in cli("serve", "users", "list", "--json").out
    assert cli("serve", "users", "rm", "ann").code == 0
    assert cli("serve", "users", "rm", "ann").code == 66
    assert "users, or none to serve" in cli("serve", "user").err
    assert "for this machine alone" in cli("ui", "--host", "0.0.0.0").err
    assert "belong together" in cli("serve", "--tls-cert", "x").err
    for host in ("0.0.0.0", "::", "no.such.host.invalid"):
        refused = cli("serve", "--host", host, "--port", "0")
        assert (refused.code, refused.out) == (2, ""), host
        assert "without TLS" in refused.err or "has no address" in refused.err
