"""Workflows of the real flytekit, whose MPI tasks run in pods."""

from __future__ import annotations

import re
import shutil

import pytest
from kube_runs import UID, Kube

import environments
from flyte_runs import TASKS, flyte, manifest, served, value
from launches import LONG
from runs import WORKERS
from shanty.runtime.rundir import read_json

pytestmark = [LONG, pytest.mark.timeout(900)]


def test_packages_of_here(kube: Kube) -> None:
    """They are brought, since the image has Python alone; the script is from a URL."""
    words = ("--on", "k8s", "--image", kube.image, "--uid", str(UID), "--packages", "sync")
    with served(WORKERS) as url:
        line = (*words, f"{url}/{TASKS}", "horovod_training_wf")
        done = flyte(kube.shanty.home, kube.shanty.folder, *line, timeout=580, **kube.env)
    assert re.fullmatch(r"loss 0\.\d+, 4 weights", value(done))


def test_packages_of_the_image_alone(kube: Kube) -> None:
    """The task names it; it has no flytekit. A file goes to the pods."""
    plain, text = "@task(task_config=job())\ndef copies(", (WORKERS / TASKS).read_text()
    own = plain.replace("job()", f"job(), container_image={kube.image!r}")
    assert plain in text
    (kube.shanty.folder / TASKS).write_text(text.replace(plain, own))
    (kube.shanty.folder / "text.txt").write_text("hello")
    words = ("--on", "k8s", "--uid", str(UID), "--packages", "none")
    line = (*words, TASKS, "files", "--text", "text.txt")
    done = flyte(kube.shanty.home, kube.shanty.folder, *line, **kube.env)
    assert done.returncode == 1, done.stderr
    last = done.stderr[done.stderr.rindex("shanty: ") :]
    assert "No module named 'flytekit'" in last and "--packages sync" in last, done.stderr


def test_the_mpijob_that_the_plugin_sends(kube: Kube) -> None:
    """Without an operator: Flyte's own program reads inputs and writes outputs in each pod."""
    shutil.copy(WORKERS / TASKS, kube.shanty.folder)
    python, data = environments.flyte(), kube.shanty.folder / "data"
    image_python = kube.shanty.folder / "venv/bin/python"  # the workspace goes to the pods
    image_python.parent.mkdir(parents=True)
    shutil.copy(python.with_name("entrypoint.py"), image_python.parent)
    text = manifest("total", {"numbers": [1, 2, 4]}, data, kube.image, "venv/bin/python")
    file = kube.shanty.folder / "job.json"
    file.write_text(text.replace(f"{data}/", "data/"))  # no store is here that all pods see
    words = ("--uid", str(UID), "--mpi", "openmpi", "--packages", "sync", "--python", python)
    line = ("run", "--on", "k8s", *words, "--manifest", file)
    done = kube.shanty(*line, env=kube.env, timeout=580)
    assert done.returncode == 0, done.stderr
    assert len(set(re.findall(r"rank \d of 2 on (\S+) bar", done.stdout))) == 2
    assert "data/outputs/outputs.pb" in (read_json(kube.last.left) or {})["files"]
