"""The timeline of real training loops: by variable, at run time, and where it cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from chrome_trace import lanes, nested, read
from launches import Launches

pytest.importorskip("torch")
pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("timelines")


@pytest.fixture(scope="module")
def stderr(launches: Launches, folder: Path) -> str:
    """What a run said that has left its timelines in `folder`."""
    start = {"HOROVOD_TIMELINE": str(folder / "start.json")}
    words = ("openmpi5", 2, "torch", "hvd_timeline")
    return launches.check(*words, arguments=[str(folder)], **start).stderr


@pytest.mark.usefixtures("stderr")
def test_from_the_start(folder: Path) -> None:
    events = read(folder / "start.json")
    nested(events)
    of = lanes(events)
    assert not of["cycles"]
    weight = [e["name"] for e in of["allreduce.0.weight"] if e["ph"] == "B"]
    assert weight.count("NEGOTIATE_ALLREDUCE") == weight.count("ALLREDUCE") == 3  # one a step
    assert weight.count("MPI_ALLREDUCE") == 3
    assert of["allreduce.0.weight"][-1]["args"] == {"dtype": "float32", "shape": "[8, 4]"}
    fused = [name for lane in of.values() for e in lane if "FUSION" in (name := e.get("name", ""))]
    assert set(fused) == {"MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"}
    for lane, operation, activity in (
        ("broadcast.0.weight", "BROADCAST", "MPI_BCAST"),
        ("allgather.rows", "ALLGATHER", "MPI_ALLGATHER"),
        ("alltoall.rows", "ALLTOALL", "MPI_ALLTOALL"),
        ("reducescatter.rows", "REDUCESCATTER", "MPI_REDUCESCATTER"),
    ):
        begun = [e["name"] for e in of[lane] if e["ph"] == "B"]
        assert begun == [f"NEGOTIATE_{operation}", operation, activity]


@pytest.mark.usefixtures("stderr")
def test_at_run_time(folder: Path) -> None:
    events = read(folder / "later.json")
    nested(events)
    of = lanes(events)
    assert of["cycles"], "the cycles were asked for"
    for number in range(20):
        begun = [e["name"] for e in of[f"allreduce.late.{number}"] if e["ph"] == "B"]
        assert begun == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "MPI_ALLREDUCE"]


def test_one_warning_where_it_cannot_be_written(folder: Path, stderr: str) -> None:
    told = [line for line in stderr.splitlines() if "timeline" in line]
    assert len(told) == 1, stderr  # rank 0's, which alone writes
    assert str(folder / "missing") in told[0]
