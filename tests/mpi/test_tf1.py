"""Scripts of TensorFlow 1 under `--tf1`, with the last TensorFlow for Estimators and today's."""

from __future__ import annotations

from pathlib import Path

import pytest

import environments
from launches import LONG, checks
from mnist_files import write_mnist
from runs import WORKERS, Shanty

pytestmark = [pytest.mark.mpi, pytest.mark.slow, LONG, pytest.mark.xdist_group("environment")]

PATIENCE = 170  # seconds; TensorFlow alone takes ten to load
WORDS = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
LIBRARY = "import tensorflow as tf\nfrom keras.layers import Dense\n"


@pytest.fixture(params=["2.15", "2.21"])
def tensorflow(request: pytest.FixtureRequest) -> tuple[str, Path]:
    version: str = request.param
    if version == "2.15":
        return version, environments.tensorflow_2_15()
    return version, environments.tensorflow()


@pytest.fixture
def data(shanty: Shanty) -> str:
    folder = shanty.folder / "MNIST-data"
    folder.mkdir()
    write_mnist(folder, 500, 100)
    return str(folder)


def test_names(shanty: Shanty, tensorflow: tuple[str, Path]) -> None:
    """Also what a library sees, which is one for standing in site-packages."""
    version, python = tensorflow
    packages = shanty.folder / "site-packages"
    packages.mkdir()
    (packages / "a_library.py").write_text(LIBRARY)
    there = "keras,estimator" if version == "2.15" else "keras"
    done = shanty(
        "run", "-q", "--tf1", "-n", 1, "--python", python, "-e", f"PYTHONPATH={packages}",
        WORKERS / "tf1_names.py", "--number", 4, "--there", there, timeout=PATIENCE, env=WORDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line.removeprefix("ok ") for line in done.stdout.splitlines() if "ok " in line]
    assert passed == checks("tf1_names.py")


@pytest.mark.parametrize("layers", [[], ["layers"]], ids=["contrib", "layers"])
def test_a_graph_on_every_rank(
    shanty: Shanty, tensorflow: tuple[str, Path], data: str, flavour: str, layers: list[str]
) -> None:
    done = shanty(
        "run", "-q", "--tf1", "--alone", "ok", "--mpi", flavour, "-n", 2, "--python", tensorflow[1],
        WORKERS / "tf1_mnist.py", data, *layers, timeout=PATIENCE, env=WORDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[0] ok True True", "[1] ok True True"} <= set(done.stdout.splitlines()), done.stdout
    assert (shanty.folder / "checkpoints" / "checkpoint").exists()


def test_an_estimator(shanty: Shanty, tensorflow: tuple[str, Path], data: str) -> None:
    version, python = tensorflow
    done = shanty(
        "run", "-q", "--tf1", "-n", 1, "--python", python, WORKERS / "tf1_estimator.py", data,
        timeout=PATIENCE, env=WORDS,
    )  # fmt: skip
    if version == "2.15":
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ok True" in done.stdout.splitlines()
    else:
        assert "tf.estimator.RunConfig is in TensorFlow up to 2.15" in done.stderr


def test_keras(shanty: Shanty, tensorflow: tuple[str, Path]) -> None:
    done = shanty(
        "run", "-q", "--tf1", "-n", 1, "--python", tensorflow[1], WORKERS / "tf1_keras.py",
        timeout=PATIENCE, env=WORDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok True True" in done.stdout.splitlines()


SPAWN = """
import multiprocessing
import tensorflow as tf

def work(_):
    return hasattr(tf, "placeholder")

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("ok", pool.map(work, [0]), flush=True)
"""


def test_children_see_the_same(shanty: Shanty, tensorflow: tuple[str, Path]) -> None:
    done = shanty(
        "run", "-q", "--tf1", "-n", 1, "--python", tensorflow[1], shanty.script(SPAWN),
        timeout=PATIENCE, env=WORDS,
    )  # fmt: skip
    assert "ok [True]" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    "line", ["import tensorflow as tf; tf.placeholder(tf.float32)", "import tensorflow.contrib.rnn"]
)
def test_without_it_a_script_is_told(
    shanty: Shanty, tensorflow: tuple[str, Path], line: str
) -> None:
    script = shanty.script(line)
    done = shanty(
        "run", "-n", 1, "--python", tensorflow[1], script, timeout=PATIENCE, env=WORDS
    )  # fmt: skip
    assert done.returncode == 1
    fix = f"fix: it is written for TensorFlow 1: shanty run --tf1 {Path(script).name}"
    assert fix in done.stderr
