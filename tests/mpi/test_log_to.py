"""Values of real runs, elsewhere: read back by the packages themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import environments
from runs import LONG, Shanty

pytestmark = pytest.mark.mpi
needs_packages = pytest.mark.skipif(not LONG, reason="installs packages: SHANTY_TEST_LONG=1")

SCRIPT = """
import sys
import shanty
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
for step in (10, 20, 15):
    shanty.log({"train/loss": 1 / step + rank, "step": step, "note": "warm"})
shanty.log(done=True, bad=float("nan"))
MPI.COMM_WORLD.Barrier()
if "fail" in sys.argv and rank == 1:
    raise ValueError("on purpose")
MPI.COMM_WORLD.Barrier()
"""
TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1])
found.Reload()
names = found.Tags()["scalars"]
print(json.dumps({n: [[e.step, e.value] for e in found.Scalars(n)] for n in names}))
"""
MLFLOW = """
import json, os, pathlib, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=pathlib.Path(sys.argv[1]).as_uri())
experiment = client.get_experiment_by_name("shanty").experiment_id
print(json.dumps({run.info.run_name: [
    run.info.status, run.data.tags,
    [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, "train/loss")],
] for run in client.search_runs([experiment])}))
"""


@pytest.fixture
def python() -> Path:
    """An interpreter with all of the packages."""
    return environments.environment("sinks", environments.SINKS, beside=sys.executable)


def ask(python: Path, program: str, *words: object) -> Any:
    done = subprocess.run(
        [str(python), "-c", program, *map(str, words)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start(shanty: Shanty, python: Path, to: str, *words: object, **env: str) -> Any:
    script = shanty.script(SCRIPT)
    options = ("-q", "-n", 2, "--name", "night", "--log-to", to, "--python", python)
    return shanty("run", *options, script, *words, env={"HOME": str(shanty.home), **env})


def test_a_package_that_is_not_there_is_said_before_the_ranks_start(shanty: Shanty) -> None:
    """The Python of the tests has no MLflow."""
    done = shanty("run", "-n", 2, "--log-to", "mlflow", shanty.script(SCRIPT))
    assert done.returncode != 0
    assert "--log-to mlflow needs the package mlflow" in done.stderr
    assert "-m pip install mlflow" in done.stderr
    assert not list((shanty.home / "runs").glob("*"))


@needs_packages
def test_all_places_at_once(shanty: Shanty, python: Path) -> None:
    """By shanty.toml; each rank has a record of its own, and all values are in the run's too."""
    (shanty.folder / "shanty.toml").write_text('[run]\nlog_to = ["mlflow", "tensorboard"]\n')
    done = shanty(
        *("run", "-q", "-n", 2, "--name", "night", "--python", python, shanty.script(SCRIPT)),
        env={"HOME": str(shanty.home)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    artifacts = shanty.last.artifacts
    for rank, folder in enumerate((artifacts / "tensorboard", artifacts / "tensorboard/rank-1")):
        (events,) = folder.glob("events.out.tfevents.*")
        found = ask(python, TENSORBOARD, events)
        assert [step for step, _ in found["train/loss"]] == [10, 20, 15]
        assert found["train/loss"][0][1] == pytest.approx(0.1 + rank)
        assert found["done"] == [[3, 1.0]]
        assert found["bad"][0][1] != found["bad"][0][1]
    found = ask(python, MLFLOW, shanty.last.path / "mlflow-store")
    assert sorted(found) == ["night", "night rank 1"]
    status, tags, loss = found["night rank 1"]
    assert (status, tags["note"], tags["shanty.run"]) == ("FINISHED", "warm", shanty.last.id)
    assert sorted(loss) == [[10, 1.1], [15, 1 + 1 / 15], [20, 1.05]]
    assert len(shanty.last.metrics.read_text().splitlines()) == 8


@needs_packages
def test_weights_and_biases_offline(shanty: Shanty, python: Path) -> None:
    """The user is not logged in, so nothing is sent; each rank has its own folder of files."""
    done = start(shanty, python, "wandb", WANDB_API_KEY="")
    assert (done.returncode, done.stderr) == (0, "")
    folders = sorted((shanty.last.artifacts / "wandb").glob("offline-run-*"))
    assert len(folders) == 2
    text = b"".join(file.read_bytes() for folder in folders for file in folder.glob("*.wandb"))
    for word in (b"train/loss", b"night rank 1", shanty.last.id.encode(), b"warm"):
        assert word in text


@needs_packages
def test_a_run_that_fails(shanty: Shanty, python: Path) -> None:
    """The values are there, the record says how it ended, and the failure is the script's."""
    done = start(shanty, python, "tensorboard,mlflow", "fail")
    assert done.returncode == 1
    assert "ValueError: on purpose" in done.stderr
    artifacts = shanty.last.artifacts
    (events,) = (artifacts / "tensorboard/rank-1").glob("events.out.tfevents.*")
    assert len(ask(python, TENSORBOARD, events)["train/loss"]) == 3
    status, _, loss = ask(python, MLFLOW, shanty.last.path / "mlflow-store")["night rank 1"]
    assert (status, len(loss)) == ("FAILED", 3)


@needs_packages
def test_a_server_that_is_not_there_fails_no_run(shanty: Shanty, python: Path) -> None:
    done = start(shanty, python, "mlflow", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "nothing more is logged to mlflow" in line]
    assert len(said) == 2  # of each rank one


@needs_packages
def test_tensorboard_x(shanty: Shanty, python: Path) -> None:
    """Where the one is not installed, the other writes the same."""
    beside = {"beside": sys.executable}
    own = environments.environment("tensorboardx", environments.TENSORBOARD_X, **beside)
    done = start(shanty, own, "tensorboard")
    assert (done.returncode, done.stderr) == (0, "")
    (events,) = (shanty.last.artifacts / "tensorboard").glob("events.out.tfevents.*")
    assert [step for step, _ in ask(python, TENSORBOARD, events)["train/loss"]] == [10, 20, 15]
