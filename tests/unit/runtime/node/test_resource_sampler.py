"""Samples of a host, made of files as the kernel has them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime import proc_files
from shanty.runtime.messages import Sample
from shanty.runtime.node import resource_sampler
from shanty.runtime.node.gpu_monitor import GpuMonitor
from shanty.runtime.node.resource_sampler import EVERY, FIRST, ResourceSampler, _Reading
from shanty.runtime.rundir import RunDir, read_lines

GIB = 1 << 30
NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: {0} 1 0 0 0 0 0 0 {0} 1 0 0 0 0 0 0
  eth0:{1} 1 0 0 0 0 0 0 {2} 1 0 0 0 0 0 0
 bond0: {1} 1 0 0 0 0 0 0 {2} 1 0 0 0 0 0 0
 veth1: {1} 1 0 0 0 0 0 0 {2} 1 0 0 0 0 0 0
"""


class Host:
    """A machine's files, with as many cores as this process may use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cores = sorted(os.sched_getaffinity(0))
        for name in ("lo", "eth0/device", "bond0/lower_eth0", "veth1/brport"):
            (root / "sys/class/net" / name).mkdir(parents=True)
        self.write("proc/self/cgroup", "0::/\n")
        self.write("proc/meminfo", f"MemTotal: {8 << 20} kB\nMemAvailable: {6 << 20} kB\n")
        self.at(0, 0)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def at(self, busy: int, idle: int, received: int = 0, sent: int = 0) -> None:
        """Counters of each core, in ticks, and of the network."""
        lines = [f"cpu{core} {busy} 0 0 {idle} 0 0 0 0 0 0" for core in self.cores]
        other = "cpu9999 77777 0 0 0 0 0 0 0 0 0"  # is another job's
        self.write("proc/stat", "\n".join(["cpu 1 2 3 4", *lines, other, "intr 1 2 3"]))
        self.write("proc/net/dev", NET.format(received * 7, received, sent))

    def sampler(self) -> ResourceSampler:
        return ResourceSampler(0.0, str(self.root), GpuMonitor("no-such-program"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_machine(host: Host) -> None:
    sampler = host.sampler()
    assert sampler.tick(FIRST / 2) is None
    host.at(25, 75, received=3000, sent=500)
    assert sampler.tick(FIRST) == {
        "cpu": 0.25,
        "memory": 2 * GIB,
        "memory_total": 8 * GIB,
        "receive": 3000,
        "send": 500,
        "gpus": [],
        "segments": 0,
        "resent": 0,
    }
    host.at(125, 75, received=3000, sent=500 + 10 * 500)
    assert sampler.tick(FIRST + EVERY - 0.1) is None
    sample = sampler.tick(FIRST + EVERY)
    assert sample is not None
    assert (sample["cpu"], sample["receive"], sample["send"]) == (1.0, 0, 1000)


def test_limits_of_a_group_are_the_whole(host: Host) -> None:
    """Of a quota of 0.5 cores, 0.25 s in a second are half; memory is the group's own."""
    host.write("sys/fs/cgroup/cpu.max", "50000 100000")
    host.write("sys/fs/cgroup/cpu.stat", "usage_usec 1000000\n")
    host.write("sys/fs/cgroup/memory.max", str(GIB))
    host.write("sys/fs/cgroup/memory.current", "3000")
    sampler = host.sampler()
    host.write("sys/fs/cgroup/cpu.stat", "usage_usec 1250000\n")
    sample = sampler.tick(1.0)
    assert sample is not None
    assert (sample["cpu"], sample["memory"], sample["memory_total"]) == (0.5, 3000, GIB)


def test_the_interval_doubles(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day has some thousand samples, and a month not many more."""
    monkeypatch.setattr(
        ResourceSampler, "_read", lambda _self, now: _Reading(now, now, now, {}, (0, 0))
    )
    monkeypatch.setattr(ResourceSampler, "_memory", lambda _self: (1, 2))

    def samples(seconds: int) -> int:
        sampler = host.sampler()
        return sum(sampler.tick(float(now)) is not None for now in range(1, seconds))

    hour, day, month = samples(3600), samples(86400), samples(30 * 86400)
    assert 350 < hour < 721
    assert hour < day < 2500
    assert day < month < 4100


def test_what_the_kernel_does_not_say(tmp_path: Path) -> None:
    sampler = ResourceSampler(0.0, str(tmp_path), GpuMonitor("no-such-program"))
    assert sampler.tick(10.0) is None


def test_of_this_machine() -> None:
    sampler = ResourceSampler(time.monotonic(), gpus=GpuMonitor("no-such-program"))
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    sample: dict[str, Any] = sampler.tick(time.monotonic() + FIRST) or {}
    assert 0 < sample["cpu"] <= 1
    assert 0 < sample["memory"] < sample["memory_total"]


@given(st.text(), st.sets(st.integers(0, 3)))
def test_no_text_is_too_strange(text: str, cores: set[int]) -> None:
    with patch.object(proc_files, "read", return_value=text):
        proc_files.memory()
    try:
        busy, possible = resource_sampler.parse_cpus(text, cores)
        assert 0 <= busy <= possible
    except ValueError:  # no kernel writes so; that there is another number is no result
        pass


@given(
    st.lists(st.lists(st.integers(0, 1 << 50), min_size=10, max_size=10), min_size=1, max_size=9)
)
def test_times_of_cores_add_up(cores: list[list[int]]) -> None:
    text = "".join(f"cpu{n} {' '.join(map(str, row))}\n" for n, row in enumerate(cores))
    busy, possible = resource_sampler.parse_cpus(f"cpu 0 0 0 0\n{text}intr 5\n", range(len(cores)))
    assert possible == sum(sum(row[:8]) for row in cores)
    assert busy == possible - sum(row[3] + row[4] for row in cores)


def test_a_sample_is_written_with_the_time_at_which_it_was_taken(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    resource_sampler.keep(run, "a", Sample({"cpu": 0.5}, time.monotonic() - 100))
    (line,) = read_lines(run.resources)
    assert abs(line.pop("time") - (time.time() - 100)) < 5
    assert line == {"host": "a", "cpu": 0.5}
