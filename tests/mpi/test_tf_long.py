"""Thousands of steps of a graph of TensorFlow with Horovod's tape: memory flat, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

import environments
from torch_runs import LONG, TENSORFLOW_WORDS, checks, passed, run

pytestmark = [
    *(pytest.mark.mpi, pytest.mark.slow, LONG, pytest.mark.timeout(600)),
    pytest.mark.xdist_group("environment"),
]


def test_steps_leave_nothing(tmp_path: Path) -> None:
    python = environments.tensorflow()
    # few names are remembered, so that the others must be forgotten
    few = {**TENSORFLOW_WORDS, "HOROVOD_CACHE_CAPACITY": "16"}
    done = run(tmp_path, "openmpi5", 2, "tf_long.py", "10000", python=python, **few)
    for name in checks("tf_long.py"):
        passed(done, name)
    assert done.returncode == 0, done.stderr
