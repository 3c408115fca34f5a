"""ChainerMN's MNIST (examples/chainermn), on the last Chainer there was."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from environments import CHAINER, environment
from launches import LONG
from runs import Shanty, wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.xdist_group("chainermn")]

SCRIPT = Path(__file__).parents[2] / "examples" / "chainermn" / "train_mnist.py"
LEAST = 0.91  # one process reaches 0.93 in as many epochs


@pytest.fixture
def chainer() -> Path:
    """The interpreter of an environment with Chainer."""
    return environment("chainer", CHAINER)


def accuracy(done: subprocess.CompletedProcess[str]) -> float:
    assert done.returncode == 0, done.stdout + done.stderr
    return float(re.findall(r"test accuracy ([01]\.\d+)", done.stdout)[0])


def test_nothing_of_shanty_in_it() -> None:
    assert "import shanty" not in SCRIPT.read_text(encoding="utf-8")


def test_accuracy(shanty: Shanty, chainer: Path, flavour: str) -> None:
    done = shanty(
        "run", "-q", "--mpi", flavour, "-n", 2, "--python", chainer, SCRIPT, "--epoch", 5
    )  # fmt: skip
    assert accuracy(done) >= LEAST
    assert "1 different model(s) on 2 ranks" in done.stdout
    assert shanty.status()["joined"] == 2


@LONG
def test_going_on_from_a_checkpoint(shanty: Shanty, chainer: Path) -> None:
    """A run that was stopped has left its checkpoints, and the same command goes on."""
    options = ["run", "-q", "-n", 2, "--python", chainer, SCRIPT]
    process = shanty.start(*options, "--epoch", 1000)
    kept = shanty.folder / "result"
    wait_for(  # the third of each rank: then both have the second, whole
        lambda: all(len(list(kept.glob(f"mnist.{rank}.*"))) >= 3 for rank in range(2)),
        60,
        "no checkpoints",
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    done = shanty(*options, "--epoch", 5)
    assert re.search(r"goes on after epoch [2-9]", done.stdout), done.stdout + done.stderr
    assert accuracy(done) >= LEAST
