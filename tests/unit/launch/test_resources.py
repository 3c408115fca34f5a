"""How samples of hosts are read: few points, none of them invented."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shanty.launch import resources
from shanty.runtime.rundir import RunDir, append_line


def sample(host: str, time: float, **more: Any) -> dict[str, Any]:
    own = {"cpu": 0.5, "memory": 100, "memory_total": 1000, "receive": 1, "send": 2, "gpus": []}
    return {"time": time, "host": host, **own, **more}


def test_hosts_and_gpus(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    gpu = {"index": 1, "name": "A", "utilization": 0.5, "memory": 7, "memory_total": 9}
    append_line(run.resources, sample("b", 1.0))
    append_line(run.resources, sample("a", 3.0, cpu=0.25, gpus=[gpu]))
    append_line(run.resources, sample("a", 2.0))
    append_line(run.resources, {"host": "a", "cpu": 1})
    append_line(run.resources, sample("a", 5.0, gpus=[{**gpu, "utilization": None}]))
    with run.resources.open("a") as file:
        file.write('{"time": 4, "ho')
    found = resources.read(run)
    assert list(found) == ["b", "a"]
    assert found["b"].gpus == []
    assert found["a"].time == [2.0, 3.0, 5.0]
    assert found["a"].cpu == [0.5, 0.25, 0.5]
    assert asdict(found["a"])["gpus"] == [
        {
            "index": 1,
            "name": "A",
            "memory_total": 9,
            "utilization": [None, 0.5, None],
            "memory": [None, 7.0, 7.0],
        }
    ]


def test_a_run_without_samples(tmp_path: Path) -> None:
    assert resources.read(RunDir(tmp_path)) == {}


TIMES = st.lists(st.floats(0, 1e9), min_size=1, max_size=60).map(sorted)


@given(TIMES, st.integers(1, 20))
def test_thinned(times: list[float], points: int) -> None:
    samples = [{"time": time} for time in times]
    buckets = resources.thinned(samples, points)
    assert len(buckets) <= max(points, 1)
    assert all(buckets)
    assert [each for bucket in buckets for each in bucket] == samples
    if len(samples) <= points:
        assert len(buckets) == len(samples)
