"""What nvidia-smi says of GPUs, in its own form; a program in its place goes on like it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs import wait_for
from shanty.runtime.node.gpu_monitor import GpuMonitor, parse

MIB = 1 << 20
# nvidia-smi --query-gpu=… --format=csv,noheader,nounits
H100 = "0, 87, 40536, 81559, NVIDIA H100 80GB HBM3"
DIVIDED = "1, [N/A], 87, 81559, NVIDIA H100 80GB HBM3"
SPARK = "0, 3, [N/A], [N/A], NVIDIA GB10"  # its memory is the machine's
PROGRAM = f"""#!{sys.executable}
import sys, time
assert sys.argv[1:] == ["--query-gpu=index,utilization.gpu,memory.used,memory.total,name",
                        "--format=csv,noheader,nounits", "--loop=5"], sys.argv
print("0, 20, 10, 100, A\\n1, 0, 5, 100, B\\n0, 40, 30, 100, A", flush=True)
time.sleep(60)
"""


def test_lines() -> None:
    assert parse(H100) == {
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "utilization": 0.87,
        "memory": 40536 * MIB,
        "memory_total": 81559 * MIB,
    }
    divided, spark = parse(DIVIDED), parse(SPARK)
    assert divided is not None and spark is not None
    assert (divided["utilization"], divided["memory"]) == (None, 87 * MIB)
    assert (spark["utilization"], spark["memory"], spark["memory_total"]) == (0.03, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running.",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
)
def test_other_words_are_no_gpu(line: str) -> None:
    assert parse(line) is None


@given(st.text(st.characters(codec="utf-8")))
def test_no_line_is_too_strange(line: str) -> None:
    parse(line)


def program(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> GpuMonitor:
    path = folder / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return GpuMonitor()


def test_a_process_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean since the last time, else the last that is known; and it is ended."""
    monitor = program(tmp_path, PROGRAM, monkeypatch)
    monitor.start()
    wait_for(lambda: monitor.drain() or len(monitor._read.get(0, ())) == 2)
    first, second = monitor.usage()
    assert (first["utilization"], first["memory"]) == (0.3, 30 * MIB)
    assert (second["name"], second["utilization"]) == ("B", 0.0)
    assert monitor.usage()[0]["utilization"] == 0.4
    pid = monitor.end()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    assert monitor.end() == pid


def test_one_that_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = program(tmp_path, "#!/bin/sh\necho No devices were found\nexit 6\n", monkeypatch)
    monitor.start()
    pid = monitor._pid
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    monitor.drain()
    assert monitor.usage() == []
    assert monitor.end() == 0  # that number may be another's by now


def test_no_program() -> None:
    monitor = GpuMonitor("no-such-program")
    monitor.start()
    assert monitor.usage() == []
    assert monitor.end() == 0
