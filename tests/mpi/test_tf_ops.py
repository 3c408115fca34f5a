"""Horovod's API on TensorFlow: each op and option, eagerly and in graphs, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest

import environments
from launches import FLAVOURS, LONG, TENSORFLOW_WORDS, Launches

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600), pytest.mark.xdist_group("environment")]

CALLS = (
    *("moves", "tf_moves", "gradients", "tf_gradients", "reductions", "tf_reductions"),
    *("tf_training", "tf_graphs", "tf_tape", "tf_properties"),
)
MORE = [(flavour, ranks) for flavour in FLAVOURS for ranks in (2, 4)]


def every_call(launches: Launches, python: Path, flavour: str, ranks: int, share: int = 1) -> None:
    how = {"python": python, "share": share, **TENSORFLOW_WORDS}
    launches.check(flavour, ranks, "tensorflow", *CALLS, **how)


@pytest.mark.sampled(2)
def test_calls(launches: Launches) -> None:
    every_call(launches, environments.tensorflow(), "openmpi5", 2, share=6)


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
def test_one_thread_for_all_that_waits(launches: Launches) -> None:
    """Graphs in another order on another rank, where TensorFlow has one thread for operations."""
    python = environments.tensorflow()
    one = {"TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    more = {**TENSORFLOW_WORDS, **one}
    launches.check("mpich", 2, "tensorflow", "tf_graphs", python=python, **more)
