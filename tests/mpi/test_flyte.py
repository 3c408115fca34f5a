"""Workflows of the real flytekit, whose MPI tasks run on ranks of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import environments
from flyte_runs import TASKS, Done, environ, flyte, manifest, outputs, served, value
from launches import LONG
from runs import WORKERS, Shanty
from shanty.launch.kubernetes import mpijob
from shanty.runtime.rundir import read_json
from shanty.runtime.spec import Raw

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("environment"),
]


def run(shanty: Shanty, *words: str | Path, **more: str) -> Done:
    shutil.copy(WORKERS / TASKS, shanty.folder)
    return flyte(shanty.home, shanty.folder, *words, **more)


def runs_of(shanty: Shanty) -> list[Path]:
    return sorted((shanty.home / "runs").glob("*")) if (shanty.home / "runs").exists() else []


def test_without_flytekit(shanty: Shanty) -> None:
    """The tests' own Python has none."""
    shutil.copy(WORKERS / TASKS, shanty.folder)
    done = shanty("flyte", "run", TASKS, "sums")
    assert done.returncode == 2
    assert f"flytekitplugins is not installed for {sys.executable}" in done.stderr
    assert "-m pip install flytekit flytekitplugins-kfmpi" in done.stderr
    assert "Traceback" not in done.stderr


@LONG
def test_a_workflow_on_two_ranks(shanty: Shanty) -> None:
    done = run(shanty, TASKS, "sums", "--count", "11")
    assert value(done) == "55.0"
    places = re.findall(r"^\[\d\] rank (\d) of 2 on \S+ bar$", done.stdout, re.MULTILINE)
    assert sorted(places) == ["0", "1"]
    assert done.stdout.count("numbers, in process") == 1  # an ordinary task runs once, here
    assert "flyte_tasks.total: 2 workers of 1 slot" in done.stderr
    job = read_json(shanty.last.job) or {}
    assert (job["ranks"], job["name"], job["env"]["NCCL_DEBUG"]) == (2, "total", "INFO")


@LONG
def test_a_script_from_a_url_with_a_platforms_words(shanty: Shanty) -> None:
    """The line of a platform's page, but for the host; nothing of the script is left here."""
    with served(WORKERS) as url:
        words = ("--remote", "--image", "ghcr.io/a/b:1", f"{url}/{TASKS}", "horovod_training_wf")
        done = flyte(shanty.home, shanty.folder, *words)
    assert re.fullmatch(r"loss 0\.\d+, 4 weights", value(done))
    assert "rank 1 of 2: loss" in done.stdout
    assert "--remote is for a Flyte deployment and left out" in done.stderr
    assert "--image goes with --remote and is left out" in done.stderr
    assert not (shanty.folder / TASKS).exists()


@LONG
def test_tensorflow_by_horovod(shanty: Shanty) -> None:
    python = environments.tensorflow()
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    path = {"PYTHONPATH": f"{environ(shanty.home)['PYTHONPATH']}:{packages}"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = run(shanty, TASKS, "tensorflow_training_wf", timeout=300, **path, **quiet)
    assert float(value(done)) < 0.1
    assert "rank 1 of 2: loss" in done.stdout


@LONG
def test_retries_and_what_ends_them(shanty: Shanty) -> None:
    """As on a cluster: recoverable errors and lost processes are, a bug is not."""
    log = shanty.folder / "recovers"
    done = run(shanty, TASKS, "recovers", "--log", log)
    assert value(done) == "3"
    assert "is tried again" in done.stderr and "attempt 1 is none" in done.stderr
    log = shanty.folder / "killed"
    done = run(shanty, TASKS, "killed", "--log", log)
    assert value(done) == "2"
    assert "is tried again, a last time" in done.stderr and "SIGKILL" in done.stderr
    log = shanty.folder / "bug"
    done = run(shanty, TASKS, "has_a_bug", "--log", log)
    assert done.returncode == 1
    assert log.read_text() == "begun\n"
    last = done.stderr[done.stderr.rindex("shanty: ") :]
    assert "ValueError" in last and "has_a_bug" in last and "a bug" in last
    assert "rank 1 on" in last
    assert "Traceback" not in last


@LONG
def test_the_cache(shanty: Shanty) -> None:
    log = shanty.folder / "log"
    line = (TASKS, "caching", "--log", log)
    number = ("--number", "4")
    for words, times, hit in (((), 1, False), ((), 1, True), (number, 2, False)):
        done = run(shanty, *line, *words)
        assert value(done) == ("8" if words else "42")
        assert log.read_text() == "begun\n" * times
        assert len(runs_of(shanty)) == times  # a hit starts nothing, and is said
        assert ("its outputs are in flytekit's cache" in done.stderr) == hit
    # --dry-run shows the task and runs none, whatever the cache has.
    done = run(shanty, "--dry-run", "-o", "json", *line)
    assert json.loads(done.stdout)["kind"] == "MPIJob", done.stderr
    assert log.read_text() == "begun\n" * 2
    done = run(shanty, "--overwrite-cache", *line)
    assert value(done) == "42"
    assert log.read_text() == "begun\n" * 3


@LONG
def test_outputs_that_are_ignored(shanty: Shanty) -> None:
    assert value(run(shanty, TASKS, "only_rank_0")) == "of 2"
    done = run(shanty, TASKS, "only_rank_1")
    assert done.returncode == 2
    assert "only_rank_1 has no outputs" in done.stderr and "Traceback" not in done.stderr


@LONG
def test_files_stay_when_the_run_is_deleted(shanty: Shanty) -> None:
    (shanty.folder / "text.txt").write_text("hello")
    done = run(shanty, TASKS, "files", "--text", "text.txt")
    assert value(done) == "hello 2, HELLO"
    made = run(shanty, TASKS, "copies", "--text", "text.txt")
    (path,) = re.findall(r"[^\s(=]+/whole\.txt", value(made))[:1]
    assert not Path(path).is_relative_to(shanty.home)
    assert Path(path).read_text() == "hello 2"


@LONG
@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("many_cores", r"asks for 192 CPU, this machine has \d+"),
        ("many_parts_of_cores", r"asks for 450 CPU, this machine has \d+"),
        ("much_memory", r"2 ranks with 900 TiB each do not fit"),
        ("many_gpus", r"fewer GPUs than 2 ranks with 16 GPUs each take"),
    ],
)
def test_a_shortfall_is_said_at_once(shanty: Shanty, task: str, said: str) -> None:
    done = run(shanty, TASKS, task)
    assert done.returncode in (2, 69), done.stderr
    assert re.search(said, done.stderr), done.stderr
    assert f"flyte_tasks.{task}" in done.stderr and "Traceback" not in done.stderr
    assert not runs_of(shanty)


@LONG
def test_a_deadline(shanty: Shanty) -> None:
    done = run(shanty, TASKS, "endless")
    assert done.returncode == 124, done.stderr
    assert "time limit" in done.stderr and "Traceback" not in done.stderr


@LONG
def test_a_launcher_with_a_command_of_its_own(shanty: Shanty) -> None:
    done = run(shanty, TASKS, "own_command")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("its own line") == 2


@LONG
def test_what_pyflyte_says(shanty: Shanty) -> None:
    """Its help and its errors are pyflyte's own."""
    done = run(shanty, TASKS, "sums", "--help")
    assert done.returncode == 0 and "--count" in done.stdout
    done = run(shanty, TASKS, "sums", "--count", "many")
    assert done.returncode == 2 and "many" in done.stderr + done.stdout
    done = run(shanty, "--dry-run", TASKS, "sums", "--help")
    assert done.returncode == 0 and "--count" in done.stdout + done.stderr
    done = run(shanty, "--dry-run", TASKS, "numbers", "--count", "3")
    assert done.returncode == 2 and "has called no MPI task" in done.stderr
    done = run(shanty, TASKS, "no_such")
    assert done.returncode != 0 and "no_such" in done.stderr + done.stdout
    done = run(shanty, "remote-task", "x")
    assert done.returncode == 2 and "is on a Flyte deployment" in done.stderr


@LONG
def test_the_mpijob_of_a_task(shanty: Shanty) -> None:
    """Its line is a real one: it runs the task with the inputs that the workflow has for it."""
    words = ("--dry-run", "-o", "json", "--image", "img:1", TASKS, "sums", "--count", "5")
    done = run(shanty, *words)
    assert done.returncode == 0, done.stderr
    file = shanty.folder / "job.yaml"
    file.write_text(done.stdout)  # the workflow's own output is not in it
    found = mpijob.read(file)
    assert found.given["ranks"] == 2 and found.given["image"] == "img:1"
    assert found.given["env"]["FOO"] == "bar"
    assert isinstance(found.command, Raw)
    assert found.command.argv[:4] == ("mpirun", "--allow-run-as-root", "-bind-to", "none")
    assert not runs_of(shanty)
    python = environments.flyte()
    env = environ(shanty.home)
    options = ["-e", "FOO=bar", "--oversubscribe", "--python", str(python)]
    ended = subprocess.run(
        [python, "-m", "shanty", "run", *options, "--", *found.command.argv],
        cwd=shanty.folder, env=env, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("of 2 on") == 2
    assert len(re.findall(r"^(?:\[\d\] )?10\.0$", ended.stdout, re.MULTILINE)) == 1
    assert json.loads(done.stdout)["spec"]["slotsPerWorker"] == 1


def ended(shanty: Shanty, file: Path) -> Done:
    """`shanty run` of the line of an MPIJob, beside a Python with flytekit, as its image has it."""
    found, python = mpijob.read(file), environments.flyte()
    assert found.command is not None and found.given["env"]["FLYTE_FAIL_ON_ERROR"] == "true"
    env = environ(shanty.home, PATH=f"{python.parent}:{os.environ['PATH']}")
    words = ["-n", "2", "-e", "FOO=bar", "--oversubscribe", "--python", str(python), "--raw"]
    return subprocess.run(
        [python, "-m", "shanty", "run", *words, "--", *found.command.argv],
        cwd=shanty.folder, env=env, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


@LONG
@pytest.mark.parametrize(
    ("task", "inputs", "least", "most"),
    [
        ("total", {"numbers": [1, 2, 4]}, 7.0, 7.0),
        ("horovod_training", {"epochs": 60, "learning_rate": 0.05}, 0.0, 0.1),
    ],
)
def test_the_plugins_own_line(
    shanty: Shanty, task: str, inputs: dict[str, object], least: float, most: float
) -> None:
    """mpirun's or horovodrun's, with Flyte's program in each rank, which reads and writes files."""
    shutil.copy(WORKERS / TASKS, shanty.folder)
    python, data = environments.flyte(), shanty.folder / "data"
    file = shanty.folder / "job.json"
    file.write_text(manifest(task, inputs, data, "img:1", str(python)))
    done = ended(shanty, file)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout
    made = outputs(task, data)
    assert least <= float(made["o0"]) <= most
    assert "o1" not in made or Path(made["o1"]).is_file()


@LONG
def test_a_bug_by_the_plugins_own_line(shanty: Shanty) -> None:
    shutil.copy(WORKERS / TASKS, shanty.folder)
    python, data = environments.flyte(), shanty.folder / "data"
    file = shanty.folder / "job.json"
    file.write_text(manifest("has_a_bug", {"log": f"{data}/log"}, data, "img:1", str(python)))
    done = ended(shanty, file)
    assert done.returncode == 1, done.stderr
    assert "ValueError: a bug" in done.stdout + done.stderr


@LONG
def test_code_that_flyte_fetches(shanty: Shanty) -> None:
    """As `pyflyte run --remote` registers it: the launcher's host gets it first."""
    data, file = shanty.folder / "data", shanty.folder / "job.json"
    data.mkdir()
    code = data / "code.tar.gz"
    with tarfile.open(code, "w:gz") as archive:
        archive.add(WORKERS / TASKS, TASKS)
    python = str(environments.flyte())
    file.write_text(manifest("total", {"numbers": [1, 2, 4]}, data, "img:1", python, code))
    assert "pyflyte-fast-execute" in file.read_text()
    done = ended(shanty, file)
    assert done.returncode == 0, done.stderr
    assert outputs("total", data) == {"o0": "7.0"}
