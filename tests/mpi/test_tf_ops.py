"""Horovod's API on TensorFlow: each op and option, eagerly and in graphs, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import environments
from torch_runs import FLAVOURS, LONG, TENSORFLOW_WORDS, Launches, checks, passed, run

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600), pytest.mark.xdist_group("environment")]

CALLS = (
    *("tf_reductions.py", "tf_moves.py", "tf_gradients.py", "tf_graphs.py", "tf_tape.py"),
    *("tf_training.py", "tf_properties.py"),
)
SHORT = ("tf_moves.py", "tf_gradients.py", "tf_training.py")  # of these, where time is short
MORE = [(flavour, ranks) for flavour in FLAVOURS for ranks in (2, 4)]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(tmp_path_factory.mktemp("tf"))


def every_call(
    launches: Launches, python: Path, flavour: str, ranks: int, calls: Sequence[str] = CALLS
) -> None:
    modules = [each.removesuffix(".py") for each in calls]
    done = launches.once(flavour, ranks, "tf_ops.py", *modules, python=python, **TENSORFLOW_WORDS)
    for name in (name for script in calls for name in checks(script)):
        passed(done, name)
    assert done.returncode == 0, done.stderr


def test_calls(launches: Launches) -> None:
    every_call(launches, environments.tensorflow(), "openmpi5", 2, SHORT)


@LONG
@pytest.mark.parametrize(("flavour", "ranks"), MORE)
def test_every_call_on_every_mpi(launches: Launches, flavour: str, ranks: int) -> None:
    every_call(launches, environments.tensorflow(), flavour, ranks)


@LONG
@pytest.mark.parametrize(("flavour", "ranks"), MORE)
def test_every_call_with_keras_2(launches: Launches, flavour: str, ranks: int) -> None:
    python = environments.tensorflow_2_15()
    every_call(launches, python, flavour, ranks)


@LONG
def test_one_thread_for_all_that_waits(tmp_path: Path) -> None:
    """Graphs in another order on another rank, where TensorFlow has one thread for operations."""
    flavour = "mpich"
    python = environments.tensorflow()
    one = {"TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    done = run(
        tmp_path, flavour, 2, "tf_ops.py", "tf_graphs", python=python, **TENSORFLOW_WORDS, **one
    )
    for name in checks("tf_graphs.py"):
        passed(done, name)
    assert done.returncode == 0, done.stderr
