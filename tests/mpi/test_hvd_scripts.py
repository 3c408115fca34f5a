"""Unchanged Horovod scripts (examples/horovod) reach the accuracy of one process."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import runs
from launches import LONG
from runs import FLAVOURS, Shanty

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.mpi, pytest.mark.sampled, pytest.mark.slow, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parents[2] / "examples" / "horovod"
# What one process reaches within, on the 360 images that it is tested on: five standard
# deviations of the accuracy of one training with another seed.
TOLERANCE = 0.025
LEAST = {  # what one process reaches in any case; several must, where it is not trained beside them
    "cnn_digits": 0.96,
    "resnet_accumulation": 0.97,
    "sparse_embeddings": 0.90,
    "fp16_compression": 0.95,
    "process_sets": 0.95,
    "resume_checkpoint": 0.95,
    "uneven_join": 0.95,
    "timeline": 0.94,
}
SINGLE: dict[str, float] = {}  # what one process has reached
Train = Callable[..., str]


@pytest.fixture
def train(shanty: Shanty) -> Train:
    """Run a script on so many ranks; what it printed."""

    def run(name: str, ranks: int, *words: str, mpi: str = "openmpi5") -> str:
        script = FOLDER / f"{name}.py"
        options = ["-q", "--mpi", mpi, "-n", str(ranks), "--oversubscribe"]
        done: subprocess.CompletedProcess[str] = shanty(
            "run", *options, script, *words, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def accuracy(output: str) -> float:
    found = re.findall(r"accuracy ([01]\.\d+)", output)
    assert len(found) == 1, output
    return float(found[0])


def compare(train: Train, name: str, ranks: int, *words: str) -> str:
    """Train on several processes, and on one if LONG; what the several printed."""
    output = train(name, ranks, *words)
    if not runs.LONG:
        assert accuracy(output) >= LEAST[name] - TOLERANCE, output
        return output
    if name not in SINGLE:
        SINGLE[name] = accuracy(train(name, 1, *words))
        assert SINGLE[name] >= LEAST[name]
    assert accuracy(output) >= SINGLE[name] - TOLERANCE, (SINGLE[name], output)
    return output


def test_the_list_is_whole() -> None:
    torch = [path for path in FOLDER.glob("*.py") if "horovod.torch" in path.read_text("utf-8")]
    assert {path.stem for path in torch} == set(LEAST)  # test_keras.py has the others


@pytest.mark.parametrize("name", LEAST)
def test_nothing_of_shanty_in_it(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert "import horovod.torch as hvd" in text
    assert "shanty" not in text.lower()
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=LONG) for each in ("cnn_digits", "resnet_accumulation")]
    + ["sparse_embeddings"],
)
def test_accuracy(train: Train, name: str) -> None:
    compare(train, name, 2)


@LONG
def test_accuracy_in_half_precision(train: Train) -> None:
    compare(train, "fp16_compression", 2, "--num-groups", "3")


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=LONG), 4])
def test_accuracy_of_process_sets(train: Train, ranks: int) -> None:
    output = compare(train, "process_sets", ranks)
    half = ranks // 2
    for ranks_of_one in (list(range(half)), list(range(half, ranks))):
        assert f"trained by ranks {ranks_of_one}" in output


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=LONG), 3])
def test_accuracy_with_join(train: Train, ranks: int) -> None:
    output = compare(train, "uneven_join", ranks)
    assert f"rank {ranks - 1} was last" in output  # it has the most
    shares = json.loads(re.findall(r"images on each process: (.*)", output)[0])
    assert len(set(shares)) == ranks


def test_accuracy_with_a_timeline(train: Train, shanty: Shanty) -> None:
    output = compare(train, "timeline", 2)
    for event in ("NEGOTIATE_ALLREDUCE", "ALLREDUCE", "MPI_ALLREDUCE"):
        assert re.search(rf"\d {event}\n", output), output
    events = json.loads((shanty.folder / "timeline.json").read_text(encoding="utf-8"))
    tensors = {each["args"]["name"] for each in events if each.get("name") == "process_name"}
    assert any("0.weight" in each for each in tensors), tensors


@LONG
def test_going_on_from_a_checkpoint(train: Train) -> None:
    """On other numbers of ranks, too; the rank that reads the file tells the others."""
    single = accuracy(train("resume_checkpoint", 1, "--checkpoint-format", "one-{epoch}.pt"))
    assert single >= LEAST["resume_checkpoint"]
    first = train("resume_checkpoint", 2, "--epochs", "4")
    assert "goes on" not in first
    second = train("resume_checkpoint", 2)
    assert "goes on after epoch 4" in second
    assert accuracy(second) >= single - TOLERANCE
    third = train("resume_checkpoint", 1, "--epochs", "13")
    assert "goes on after epoch 12" in third
    assert accuracy(third) >= single - TOLERANCE


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_on_every_mpi(train: Train, flavour: str) -> None:
    output = train("cnn_digits", 2, "--gradient-predivide-factor", "2", mpi=flavour)
    assert accuracy(output) >= LEAST["cnn_digits"]


def test_adasum(train: Train) -> None:
    """It needs no other learning rate than one process."""
    assert accuracy(train("cnn_digits", 4, "--use-adasum")) >= LEAST["cnn_digits"]
