"""Experiments on this machine: what they print, how they end, how they are started again."""

from __future__ import annotations

import pytest

from runs import Shanty, wait_for
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import REGISTRY_PASSWORD

pytestmark = [pytest.mark.mpi, pytest.mark.xdist_group("machines")]

WORLD = """
import os, shanty
from mpi4py import MPI
world = MPI.COMM_WORLD
shanty.log({"loss": world.allreduce(1)})
print("rank", world.rank, "of", world.size, os.environ["EPOCHS"], os.getcwd())
"""


@pytest.fixture
def here(shanty: Shanty) -> Shanty:
    """A machine type, which is this machine, and a script in a folder."""
    added = shanty("machines", "add", "here", "--on", "local")
    assert added.returncode == 0, added.stderr
    (shanty.folder / "sub").mkdir()
    shanty.script(WORLD, "sub/world.py")
    return shanty


def words(verb: str, command: str, *more: str) -> list[str]:
    made = ["experiments", verb, "singlenode", "--machineType", "here", "--command", command]
    return [*made, "--workspace", ".", *more]


def test_its_output_and_its_end(here: Shanty) -> None:
    line = "mpirun -np 2 python world.py; env; exit 3"
    done = here(
        *words("run", line, "--workingDirectory", "sub", "--experimentEnv", '{"EPOCHS": 5}'),
        env={REGISTRY_PASSWORD: "hunter2"},
    )
    assert done.returncode == 3, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == f"New experiment created and started with ID: {here.last.id}"
    assert sum(f"of 2 5 {here.folder / 'sub'}" in text for text in rest) == 2
    assert "hunter2" not in done.stdout + done.stderr
    metrics = here("experiments", "metrics", "get", "last", "--metric", "loss", "--json")
    assert metrics.stdout.count('"loss": 2.0') == 2


def test_created_is_begun_and_started_again_is_another(here: Shanty) -> None:
    done = here(*words("create", "echo done", "--name", "once", "--tag", "night"))
    assert done.returncode == 0, done.stderr
    run = RunDir(here.home / "runs" / done.stdout.split()[-1])
    assert done.stdout == f"New experiment created with ID: {run.id}\n"
    assert "began by itself when it was created" in here("experiments", "start", "once").stderr
    wait_for(lambda: (read_json(run.status) or {}).get("ended"), 60, "the end")
    again = here("experiments", "start", "--id", "once", "--logs")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[1:] == ["done"]
    assert here.last.id != run.id
    listed = here("experiments", "list", "--tag", "night").stdout
    assert listed.count("here:1") == 2


def test_one_that_waits_is_stopped(here: Shanty) -> None:
    first = here(*words("create", "sleep 600")).stdout.split()[-1]
    second = here(*words("create", "echo never")).stdout.split()[-1]
    assert "here" in here("experiments", "details", second).stdout
    for run in (second, first):
        stopped = here("experiments", "stop", "--id", run)
        assert stopped.returncode == 0, stopped.stderr
        assert (read_json(RunDir(here.home / "runs" / run).status) or {})["state"] == "stopped"
    assert here("experiments", "logs", second).stdout == ""
    assert here("experiments", "delete", "--id", second).returncode == 0
    assert second not in here("experiments", "list").stdout
