"""What a real run leaves of its use of this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from runs import LONG, Shanty, wait_for
from shanty.launch import resources
from shanty.runtime import platform
from shanty.runtime.rundir import RunDir

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not platform.LINUX, reason="there are no samples on other systems"),
]

BURN = """
import os, sys, time
def wait(name, work):
    while not os.path.exists(name):
        sum(range(10**5)) if work else time.sleep(0.02)
wait("grow", True)
held = bytearray(int(sys.argv[1]) << 20)
held[::4096] = b"x" * len(held[::4096])
wait("over", False)
"""
GPU = """#!/bin/sh
while :; do
    echo "0, 42, 1024, 2048, Some GPU"
    sleep 0.2
done
"""


def series_of(run: RunDir) -> resources.Series:
    """The samples so far of the one host of a run; no series is empty."""
    wait_for(lambda: resources.read(run), 10, "there is no sample")
    (series,) = resources.read(run).values()
    return series


def test_work_is_seen(shanty: Shanty) -> None:
    """Within moments there is a first sample; it shows the core that is taken."""
    process = shanty.start("run", "-q", "-n", 1, shanty.script(BURN), 1)
    wait_for(lambda: shanty.status().get("up") == 1, 30)
    began, run = time.monotonic(), shanty.last
    series = series_of(run)
    assert time.monotonic() - began < 6  # 2 s where the machine has nothing else to do
    for name in ("grow", "over"):
        (shanty.folder / name).touch()
    assert process.wait(30) == 0
    process.communicate()
    (host,) = resources.read(run)
    assert host == json.loads(run.plan.read_text())["attempt"]["nodes"][0]["name"]
    assert series.cpu[-1] >= 0.5 / platform.usable_cores()  # it has taken a moment to begin
    assert 0 < series.memory[-1] < series.memory_total
    assert abs(series.time[-1] - time.time()) < 60
    assert len(series.time) == len(series.receive) == len(series.send)


@pytest.mark.skipif(not LONG, reason="waits for several samples")
def test_memory_is_seen(shanty: Shanty) -> None:
    """Other programs of the machine come and go, so it is much; it is gone with the run."""
    megabytes = 1500
    process = shanty.start("run", "-q", "-n", 1, shanty.script(BURN), megabytes)
    wait_for(lambda: shanty.status().get("up") == 1, 30)
    run = shanty.last
    before = series_of(run).memory[-1]
    (shanty.folder / "grow").touch()
    wait_for(lambda: series_of(run).memory[-1] > before + (megabytes * 2 // 3 << 20), 20)
    (shanty.folder / "over").touch()
    assert process.wait(30) == 0
    process.communicate()
    assert shanty("rm", run.id).returncode == 0
    assert not run.path.exists()


@pytest.mark.skipif(not LONG, reason="the parts have tests of their own")
def test_gpus_are_asked_and_left_at_the_end(
    shanty: Shanty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that is asked ends with the run, and keeps nobody waiting."""
    tool = tmp_path / "tools" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(GPU)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    process = shanty.start("run", "-q", "-n", 1, shanty.script(BURN), 1)
    wait_for(lambda: shanty.status().get("up") == 1, 30)
    run = shanty.last
    wait_for(
        lambda: any(series.gpus for series in resources.read(run).values()), 20, "no GPU was seen"
    )
    (gpu,) = next(iter(resources.read(run).values())).gpus
    assert (gpu.name, gpu.utilization[-1], gpu.memory[-1]) == ("Some GPU", 0.42, 1 << 30)
    for name in ("grow", "over"):
        (shanty.folder / name).touch()
    began = time.monotonic()
    assert process.wait(30) == 0
    assert time.monotonic() - began < 1.9  # else the end waited for it: LINGER
    process.communicate()
