"""Workflows of the real flytekit, whose MPI tasks run in a container on this machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import environments
from engines import ContainedShanty, long_only
from flyte_runs import TASKS, Done, flyte, served, value
from runs import WORKERS
from shanty.runtime.rundir import read_json

pytestmark = [
    long_only,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("engine", ["podman"], indirect=True),  # it takes minutes
]


def run(shanty: ContainedShanty, *words: str | Path) -> Done:
    line = (*shanty.image_words, "--oversubscribe", *words)
    return flyte(shanty.home, shanty.folder, *line, timeout=400, **shanty.engine.environ)


def test_packages_of_here(shanty: ContainedShanty) -> None:
    """They are brought, since the image has Python alone. Files go in and come back."""
    shutil.copy(WORKERS / TASKS, shanty.folder)
    (shanty.folder / "text.txt").write_text("hello")
    done = run(shanty, TASKS, "files", "--text", "text.txt")
    assert value(done) == "hello 2, HELLO"
    assert (read_json(shanty.last.job) or {})["image"] == shanty.engine.image
    with served(WORKERS) as url:
        done = run(shanty, f"{url}/{TASKS}", "horovod_training_wf")
    assert re.fullmatch(r"loss 0\.\d+, 4 weights", value(done))


def test_packages_of_the_image_alone(shanty: ContainedShanty) -> None:
    """It has no flytekit."""
    shutil.copy(WORKERS / TASKS, shanty.folder)
    done = run(shanty, "--packages", "none", TASKS, "sums")
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("shanty: ") :]
    assert "No module named 'flytekit'" in last and "--packages sync" in last, done.stderr
    assert "Traceback" not in last
    assert not re.search(r"python[\d.]*: No module", done.stdout + done.stderr)  # as of `-m`


def test_the_mpijob_of_a_dry_run(shanty: ContainedShanty) -> None:
    """Its line has the inputs in it, so there is nothing else to mount."""
    shutil.copy(WORKERS / TASKS, shanty.folder)
    words = ("--dry-run", "-o", "yaml", "--image", shanty.engine.image)
    shown = flyte(shanty.home, shanty.folder, *words, TASKS, "sums", "--count", "5")
    file = shanty.folder / "job.yaml"
    file.write_text(shown.stdout)
    packages = ("--python", environments.flyte(), "--packages", "sync", "--mpi", "openmpi")
    words = ("run", "--runtime", shanty.engine.name, *packages, "--manifest", file)
    done = shanty(*words, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 2 on") == 2
    assert re.search(r"^(?:\[0\] )?10\.0$", done.stdout, re.MULTILINE), done.stdout
