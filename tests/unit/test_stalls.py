"""Stalls: who is the odd one, native stacks, pulses, settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runs import wait_for
from shanty.carry import platform
from shanty.carry.agent.elf import Image, UnreadableError
from shanty.carry.agent.native import Native, mpi_name
from shanty.carry.agent.odd import Standing, judge
from shanty.carry.agent.stacks import with_native
from shanty.carry.errors import UsageError
from shanty.cli.grouping import grouped
from shanty.cli.jobs import stall_after
from shanty.launch import settings

linux = pytest.mark.skipif(not platform.LINUX, reason="Linux only")
LINK = {"name": "eth0", "carries": True, "used": True, "bytes": 0, "errors": 0}
LOAD = {"cores": 2, "links": [LINK], "tcp": [100, 0], "age": 60.0}
MAIN = ["/w/train.py", 9, "main"]


def rank(number: int, *frames: list[Any], host: str = "a", **told: Any) -> Standing:
    """A rank that waits in MPI_Allreduce, unless told otherwise."""
    usual = {
        "pid": 100 + number,
        "state": "R",
        "ready": 1.0,
        "cpu": 0.9,
        "read": True,
        "call": "MPI_Allreduce",
        "waits": 70.0,
        "still": 70.0,
        "inside": 70.0,
        "through": None,
    }
    threads = [{"current": True, "frames": list(frames) or [MAIN]}]
    return Standing(number, host, {**usual, **told}, threads)


def away(number: int, *frames: list[Any], **told: Any) -> Standing:
    """A rank that is not in MPI."""
    return rank(number, *frames, **{"call": "", "waits": 0.0, "still": 0.0, "inside": 0.0, **told})


def what(*ranks: Standing, ended: dict[int, str] | None = None, **load: Any) -> str:
    """The verdict after 60 s; "" for none."""
    hosts = {one.host for one in ranks}
    stall = judge(ranks, ended or {}, {host: {**LOAD, **load} for host in hosts}, 60)
    return stall.what.removeprefix("no progress for 60 s: ") if stall else ""


TRAIN = ["/w/train.py", 31, "train"]


@pytest.mark.parametrize(
    ("odd", "doing"),
    [
        (away(2, TRAIN), "busy in train (train.py:31)"),
        (away(2, TRAIN, cpu=0.0, ready=0.1, state="S"), "idle in train (train.py:31)"),
        (away(2, TRAIN, state="T"), "stopped, as by SIGSTOP"),
        (away(2, TRAIN, cpu=0.01), "ready to run, but gets 1.0 % of a core"),
        (
            away(2, TRAIN, lock=["/w/lock", 101], ready=0.0),
            "waiting in train (train.py:31) for the lock on /w/lock, which rank 1 holds",
        ),
        (
            away(2, ["/v/torch/utils/data/dataloader.py", 5, "_next"], TRAIN),
            "waiting in train (train.py:31) for its DataLoader",
        ),
        (rank(2, TRAIN, call="MPI_Bcast"), "in MPI_Bcast at train (train.py:31)"),
        (rank(2, TRAIN, call="MPI_Finalize"), "at its end, in MPI_Finalize"),
        (rank(2, TRAIN), "in MPI_Allreduce at train (train.py:31)"),
        (rank(2, cpu=0.0), "ready to run, but gets 0.0 % of a core"),
    ],
)
def test_the_odd_one(odd: Standing, doing: str) -> None:
    said = what(rank(0), rank(1), odd)
    assert said == f"rank 2 on a is {doing}, ranks 0, 1 wait in MPI_Allreduce"


def test_the_worst_comes_first() -> None:
    said = what(rank(0), rank(1, TRAIN, call="MPI_Bcast"), away(2, TRAIN), rank(3), rank(4))
    assert said.startswith(
        "rank 2 on a is busy in train (train.py:31), rank 1 on a is in MPI_Bcast"
    )


def test_a_rank_that_has_ended() -> None:
    assert what(rank(0), rank(1), ended={2: "b"}).startswith("rank 2 on b is no more: it has ended")


@pytest.mark.parametrize(
    "ranks",
    [
        [away(0), away(1)],  # nobody is in MPI
        [rank(0), rank(1, waits=20.0)],  # the last one has come
        [rank(0), away(1, through=3.0)],  # it comes and goes
        [rank(0, waits=40.0), away(1)],  # not for long enough
    ],
)
def test_what_is_no_stall(ranks: list[Standing]) -> None:
    assert what(*ranks) == ""


def test_all_in_one_call() -> None:
    both = rank(0), rank(1, host="b")
    assert what(*both) == "all ranks wait in MPI_Allreduce"
    assert what(*both, links=[{**LINK, "bytes": 1 << 30}]) == ""  # something large is under way
    down = what(*both, links=[{**LINK, "carries": False}])
    assert (
        down == "all ranks wait in MPI_Allreduce; link eth0 of b is down" or "of a is down" in down
    )
    assert "30 of the 100 packets" in what(*both, tcp=[100, 30])


def test_collectives_of_torch() -> None:
    frames = (
        ["/v/torch/distributed/distributed_c10d.py", 7, "all_reduce"],
        ["/v/torch/distributed/c10d_logger.py", 8, "wrapper"],
        MAIN,
    )
    waiting = away(0, *frames, still=70.0)
    assert (waiting.call, waiting.waits) == ("torch all_reduce", 70.0)
    assert away(0, *frames).waits == 0.0


def test_without_native_stacks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\nworld.Allreduce(x, y)\nksp.solve(b, x)\n")
    waiting = away(0, [str(script), 2, "f"], read=False, still=90.0, inside=70.0)
    assert (waiting.call, waiting.waits) == ("MPI's Allreduce", 70.0)
    assert away(0, [str(script), 3, "f"], read=False, still=90.0, inside=70.0).call == ""


def test_groups_of_stacks() -> None:
    looks = [{"moves": [{"rank": 0, "call": "MPI_Recv", "frames": [["", 0, "MPI_Recv"]]}]}]
    answers = with_native([{"rank": 0, "error": "no Python"}, {"rank": 1, "error": "none"}], looks)
    groups = grouped(answers, all_threads=False, first={1})
    assert groups == [([1], "  none"), ([0], "  MPI_Recv")]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("PMPI_Allreduce", "MPI_Allreduce"),
        ("MPI_Allreduce_c", "MPI_Allreduce"),
        ("mpi_recv_", "MPI_Recv"),
        ("mpi_bcast_f08ts_", "MPI_Bcast"),
        ("ompi_mpi_finalize", "MPI_Finalize"),
        ("opal_progress", ""),
    ],
)
def test_names_of_calls(symbol: str, name: str) -> None:
    assert mpi_name(symbol) == name


@linux
def test_the_native_stack_of_a_process() -> None:
    code = "import time; print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        native = Native()
        wait_for(lambda: "S" in Path(f"/proc/{process.pid}/stat").read_text().split()[2])
        looks = native.looks([process.pid, 2**22 + 1])
        if not looks:
            pytest.skip("ptrace is not allowed here")
        names = [frame.name for frame in looks[process.pid].frames]
        assert any("nanosleep" in name for name in names[:3])
        assert any(name in ("Py_BytesMain", "main", "__libc_start_main") for name in names[5:])
        assert looks[process.pid].call == ""
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "TracerPid:\t0\n" in status
        assert "State:\tS" in status or "State:\tR" in status
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_is_no_program() -> None:
    with pytest.raises(UnreadableError):
        Image(b"#!/bin/sh\n" + bytes(100))


BLOCKED = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from pulse import Pulse
Pulse(sys.argv[2], int(sys.argv[3]))
lock = threading.Lock()
lock.acquire()
def wait():
    lock.acquire()
def limit():
    lock.acquire(timeout=60)
def spin():
    while True:
        sorted([1])
print(flush=True)
{"wait": wait, "limit": limit, "spin": spin}[sys.argv[4]]()
"""


@linux
@pytest.mark.parametrize("what", ["wait", "limit", "spin"])
def test_pulses(tmp_path: Path, what: str) -> None:
    folder = Path(platform.__file__).parent / "rank"
    path = tmp_path / "pulse"
    words = [str(folder), str(path), str(platform.PULSE_SIGNAL), what]
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    def answered() -> int:
        return int(path.read_text().split()[1])

    def moves() -> int:
        return int(path.read_text().split()[2])

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().split()[2]

    try:
        assert process.stdout is not None
        process.stdout.readline()
        if what != "wait":
            wait_for(lambda: what == "spin" or state() == "S", 10)
            for count in range(1, 9):
                os.kill(process.pid, platform.PULSE_SIGNAL)
                wait_for(lambda count=count: answered() == count, 10)  # type: ignore[misc]
            assert moves() <= 2 if what == "limit" else moves() > 0
        else:
            wait_for(lambda: state() == "S", 10)
            os.kill(process.pid, platform.PULSE_SIGNAL)
            pending = Path(f"/proc/{process.pid}/status")
            mask = f"{1 << (platform.PULSE_SIGNAL - 1):016x}"
            wait_for(lambda: f"ShdPnd:\t{mask}" not in pending.read_text() and state() == "S", 10)
            assert answered() == 0
    finally:
        process.kill()
        _, said = process.communicate()
    assert said == b""


def test_the_settings(tmp_path: Path) -> None:
    file = tmp_path / settings.FILE
    file.write_text("on_stall = 'stop'\nstall_after = 0\n")
    found = settings.load(tmp_path)
    assert (found.on_stall, found.stall_after) == ("stop", 0)
    file.write_text("on_stall = 'shrug'\n")
    with pytest.raises(UsageError, match="warn or stop"):
        settings.load(tmp_path)
    assert [stall_after(text) for text in ("off", "0", "2m")] == [0, 0, 120]
