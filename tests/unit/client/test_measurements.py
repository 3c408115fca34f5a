"""Metrics of runs: of hosts and of scripts, in intervals, read on while the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shanty.client.measurements import OF_HOSTS, Reader, Row, check_names
from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RunDir, append_line

GPU = {"index": 1, "name": "H100", "utilization": 0.25, "memory": 100, "memory_total": 400}
SAMPLE = {"host": "a", "cpu": 0.5, "memory": 1000, "memory_total": 4000, "gpus": [GPU]}


def sample(run: RunDir, time: float, **more: Any) -> None:
    append_line(run.path / "resources.jsonl", {"time": time, **SAMPLE, **more})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_every_metric_of_hosts(run: RunDir) -> None:
    sample(run, 5.0)
    (host, gpu) = Reader(run, tuple(OF_HOSTS), 10.0).read(whole=True)
    assert host == Row(0.0, "a", {"cpuPercentage": 50.0, "memoryUsage": 1000.0})
    assert gpu == Row(0.0, "a gpu1", {
        "gpuMemoryFree": 300.0, "gpuMemoryUsed": 100.0, "gpuUtilization": 25.0,
        "gpuMemoryUtilization": 25.0,
    })  # fmt: skip


@pytest.mark.parametrize("name", ["gpuTemp", "gpuPowerDraw"])
def test_what_nobody_measures(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is not measured"):
        check_names([name])


def test_a_live_run_is_read_on(run: RunDir) -> None:
    reader = Reader(run, ("cpuPercentage", "loss"), 10.0)
    assert reader.read(whole=False) == []
    sample(run, 1.0, cpu=0.0)
    sample(run, 2.0, cpu=1.0)
    append_line(run.metrics, {"time": 3.0, "rank": 1, "loss": 4.0, "note": "x"})
    assert reader.read(whole=False) == []  # the interval goes on
    sample(run, 11.0, cpu=0.1)
    assert reader.read(whole=False) == [
        Row(0.0, "a", {"cpuPercentage": 50.0}),
        Row(0.0, "rank 1", {"loss": 4.0}),
    ]
    assert reader.read(whole=False) == []
    assert reader.read(whole=True) == [Row(10.0, "a", {"cpuPercentage": 10.0})]


def test_a_line_that_is_not_whole_waits(run: RunDir) -> None:
    reader = Reader(run, ("loss",), 1.0)
    text = json.dumps({"time": 1.0, "rank": 0, "loss": 2.0})
    run.metrics.write_text(text[:9])
    assert reader.read(whole=True) == []
    with run.metrics.open("a") as file:
        file.write(text[9:] + "\nnonsense\n[]\n")
    assert reader.read(whole=True) == [Row(1.0, "rank 0", {"loss": 2.0})]


def test_from_and_to(run: RunDir) -> None:
    for time in range(10):
        append_line(run.metrics, {"time": float(time), "rank": 0, "loss": time})
    found = Reader(run, ("loss",), 1.0).read(whole=True, start=3.0, end=5.0)
    assert [row.time for row in found] == [3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    "damage",
    [{"gpus": None}, {"gpus": [{}]}, {"cpu": None}, {"gpus": [{**GPU, "memory_total": 0}]}],
)
def test_a_host_that_does_not_say_all(run: RunDir, damage: dict[str, Any]) -> None:
    sample(run, 1.0, **damage)
    found = Reader(run, tuple(OF_HOSTS), 10.0).read(whole=True)
    assert found[0].values["memoryUsage"] == 1000.0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.floats(0, 1000, allow_subnormal=False), max_size=30), st.floats(0.5, 100),
    st.lists(st.booleans(), min_size=30, max_size=30),
)  # fmt: skip
def test_looking_often_is_the_same_as_looking_once(
    tmp_path: Path, times: list[float], interval: float, looks: list[bool]
) -> None:
    run = RunDir(tmp_path)
    run.metrics.unlink(missing_ok=True)
    live, found = Reader(run, ("loss",), interval), []
    for at, time in enumerate(sorted(times)):
        append_line(run.metrics, {"time": time, "rank": 0, "loss": at})
        if looks[at]:
            found += live.read(whole=False)
    found += live.read(whole=True)
    assert found == Reader(run, ("loss",), interval).read(whole=True)
