"""Thousands of training steps: memory flat, nothing left. Messages of more than 2 GiB."""

from __future__ import annotations

import os

import pytest

import environments
from launches import FLAVOURS, LONG, TENSORFLOW_WORDS, Launches

pytest.importorskip("torch")
pytestmark = pytest.mark.mpi

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
FEW = {"HOROVOD_CACHE_CAPACITY": "16"}  # names that are remembered; the others must be forgotten
MINUTES = [pytest.mark.slow, LONG, pytest.mark.timeout(600)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("ranks", "steps"), [(2, 500), pytest.param(4, 10_000, marks=MINUTES)])
@pytest.mark.parametrize(
    ("framework", "script"), [("torch", "hvd_long"), ("distributed", "torch_long")]
)
def test_steps_leave_nothing(
    launches: Launches, framework: str, script: str, ranks: int, steps: int
) -> None:
    launches.check("openmpi5", ranks, framework, script, arguments=[str(steps)], **FEW)


@pytest.mark.slow
@LONG
@pytest.mark.timeout(600)
def test_steps_of_a_graph_of_tensorflow_leave_nothing(launches: Launches) -> None:
    how = {"arguments": ["10000"], "python": environments.tensorflow(), **TENSORFLOW_WORDS, **FEW}
    launches.check("openmpi5", 2, "tensorflow", "tf_long", **how)


@pytest.mark.slow
@LONG
@pytest.mark.skipif(MEMORY < 16 << 30, reason="needs 16 GiB of memory")
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_large_messages(flavour: str, launches: Launches) -> None:
    launches.check(flavour, 2, "distributed", "torch_large")
