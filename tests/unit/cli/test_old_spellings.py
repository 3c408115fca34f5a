"""Spellings of options from before: they work, with a note that has the new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from command_line import Cli
from shanty.client import jobs, old_spellings, options
from shanty.launch.options.known import BUILTIN
from shanty.program import app
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import JobSpec, Script


@pytest.fixture(autouse=True)
def unsaid() -> Iterator[None]:
    """Each note is written once in a process; here once in a test."""
    old_spellings._said.clear()
    yield
    old_spellings._said.clear()


DRY = ["run", "--dry-run"]


@pytest.mark.parametrize(
    ("words", "now"),
    [
        ("--env none", "--packages none"),
        ("--env=none", "--packages none"),
        ("--set-env A=b", "--env"),
        ("--set-env=A=b", "--env"),
        ("--elastic --env none", "--packages none"),
        ("-qn 1 --env none", "--packages none"),
        ("-n1 --env none", "--packages none"),
    ],
)
def test_an_older_flag(cli: Cli, words: str, now: str) -> None:
    Path("train.py").touch()
    old = cli(*DRY, *words.split(), "train.py", "--env", "check", "--as", "x")
    assert old.code == 0, old.err
    assert f" is now {now}" in old.err and old.err.count("is now") == 1
    new = cli(*DRY, *now.split(), *["A=b"] * (now == "--env"), "train.py")
    assert "is now" not in new.err


def test_a_variable_is_set_with_env(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").touch()
    monkeypatch.setenv("SEED", "7")
    done = cli(*DRY, "--env", "A=b", "--env=SEED", "-e", "C=d", "train.py")
    assert {"export A=b", "export SEED=7", "export C=d"} <= set(done.out.splitlines())
    assert "is now" not in done.err


@pytest.mark.parametrize("words", ["--as mpijob", "--as=mpijob", "--k8s-label team=ml"])
def test_an_older_flag_of_kubernetes(cli: Cli, words: str) -> None:
    Path("train.py").touch()
    done = cli(*DRY, *words.split(), "train.py")
    flag = words.replace("=", " ").split()[0]
    assert f"{flag} is now --{'operator' if flag == '--as' else 'label'};" in done.err
    assert f"--{'operator' if flag == '--as' else 'label'} is for Kubernetes" in done.err


def test_a_manifest_and_a_host_file_of_mpiexec(cli: Cli) -> None:
    Path("job.yaml").write_text("kind: Pod\n")
    done = cli("run", "-f", "job.yaml")
    assert "-f is now --manifest" in done.err and "has no MPIJob" in done.err, done.err
    done = cli("run", "--warm", "-f", "job.yaml")
    assert "has no MPIJob" in done.err, done.err
    Path("job").write_text("kind: Pod\n")
    assert "has no MPIJob" in cli("run", "-f", "job").err
    Path("hosts").write_text("a\nb\n")
    done = cli("run", "-f", "hosts", "train.py")
    assert done.code == 2 and "--hostfile FILE" in done.err


def test_older_flags_of_other_verbs(cli: Cli) -> None:
    done = cli("doctor", "--env", "none", "--memory", "1M", "--gpus=0", "--json")
    for now in ("--packages none", "--memory-per-rank", "--gpus-per-rank"):
        assert f" is now {now};" in done.err, done.err


def test_an_option_without_a_value_stays_one(cli: Cli) -> None:
    done = cli("doctor", "--elastic", "--json")  # which takes a value in `shanty run`
    assert done.code == 0, done.err


@pytest.mark.parametrize("verb", ["hosts", "machines", "mpi"])
def test_remove_is_rm(cli: Cli, verb: str) -> None:
    done = cli(verb, "remove", "mpich")
    assert f"{verb} remove is now {verb} rm" in done.err
    assert "No such command" not in done.err and done.code != 2
    assert "\n  remove " not in cli(verb, "--help").out


def test_older_keys_of_shanty_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shanty.toml").write_text(
        "[run]\nenvironment = 'none'\ntags = ['a']\nmounts = ['/:/x:ro']\n"
        "[k8s]\nlabels = ['a=b']\ntolerations = ['c']\npull_secrets = ['d']\n"
    )
    found = options.tables(tmp_path)
    assert found["run"] == {"packages": "none", "tags": ["a"], "mounts": (("/", "/x", "ro"),)}
    assert found["k8s"] == {"labels": ("a=b",), "tolerations": ("c",), "pull_secrets": ("d",)}
    said = capsys.readouterr().err
    for old, now in [("environment", "packages"), ("tags", "tag"), ("pull_secrets", "pull_secret")]:
        assert f"{old} in {tmp_path}/shanty.toml is now {now};" in said


def test_an_older_key_beside_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "shanty.toml").write_text("[run]\ntags = ['a']\ntag = ['b']\n")
    with pytest.raises(UsageError, match=r"tags in \[run\] of .* is tag, which stands there, too"):
        options.tables(tmp_path)


def test_a_shell_that_completes_a_line_gets_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(app, info_name="shanty", resilient_parsing=True)
    run = app.get_command(context, "run")
    hosts = app.get_command(context, "hosts")
    assert run is not None and isinstance(hosts, click.Group)
    run.make_context("run", ["--as", "mpijob", "--env", "none"], context, resilient_parsing=True)
    assert hosts.get_command(context, "remove") is hosts.get_command(context, "rm")
    assert capsys.readouterr().err == ""


def test_an_older_name_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = jobs.job_of(Script("train.py"), tmp_path, {"environment": "none"})
    assert job.packages == "none"
    assert "environment= is now packages=;" in capsys.readouterr().err


def test_both_names_in_python(tmp_path: Path) -> None:
    options.refuse_unknown(["environment", "packages"])
    given = {"environment": "none", "packages": "sync"}
    with pytest.raises(UsageError, match="environment= is packages= now, which is given, too"):
        jobs.job_of(Script("train.py"), tmp_path, given)


def test_an_empty_argument_is_one(cli: Cli) -> None:
    assert "unexpected" not in cli("doctor", "", "--json").err


def test_a_job_of_an_older_version() -> None:
    old = JobSpec(Script("train.py"), packages="sync").to_json()
    old["environment"] = old.pop("packages")
    assert JobSpec.from_json(old).packages == "sync"


def test_the_keys_of_shanty_toml_are_the_flags() -> None:
    for key, option in options.KEYS.items():
        assert f"--{key.replace('_', '-')}" in option.flags.split()
    for target in BUILTIN:
        for key, option in target.keys.items():
            flags = {f"--{key.replace('_', '-')}", f"--{target.scheme}-{key.replace('_', '-')}"}
            assert flags & set(option.flags.split())
