"""The timeline's file: valid at every time, nested whatever is reported; no fault disturbs."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from chrome_trace import lanes, nested, read
from shanty.collectives import timeline as module
from shanty.collectives.timeline import Timeline


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timeline.json"


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def allreduce(timeline: Timeline, name: str) -> None:
    """All that a fused allreduce reports, in its order."""
    timeline.negotiate_start(name, "allreduce")
    timeline.negotiate_end(name)
    timeline.start(name, "allreduce")
    for activity in ("QUEUE", "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE"):
        timeline.activity_start([name], activity)
        timeline.activity_end([name])
    timeline.end(name, "[3, 2]", "torch.float32")


def test_the_names_and_order_are_horovods(path: Path) -> None:
    timeline = Timeline(path, mark_cycles=True)
    timeline.mark_cycle()
    allreduce(timeline, "allreduce.w")
    timeline.close()
    events = read(path)
    nested(events)
    first, order = events[:2]
    assert (first["ph"], first["name"], first["pid"]) == ("M", "process_name", 0)
    began = first["args"]["start_time_since_epoch_in_micros"]
    assert abs(began / 1e6 - time.time()) < 60
    assert (order["name"], order["args"]) == ("process_sort_index", {"sort_index": 0})
    of = lanes(events)
    assert [(e["ph"], e["name"], e["s"]) for e in of["cycles"]] == [("i", "CYCLE_START", "g")]
    told = [(e["ph"], e.get("name", "")) for e in of["allreduce.w"]]
    assert told == [
        ("B", "NEGOTIATE_ALLREDUCE"),
        ("E", ""),
        ("B", "ALLREDUCE"),
        ("B", "QUEUE"),
        ("E", ""),
        ("B", "MEMCPY_IN_FUSION_BUFFER"),
        ("E", ""),
        ("B", "MPI_ALLREDUCE"),
        ("E", ""),
        ("E", ""),
    ]
    assert of["allreduce.w"][-1]["args"] == {"dtype": "float32", "shape": "[3, 2]"}


def test_a_lane_for_each_name_and_one_only(path: Path) -> None:
    timeline = Timeline(path)
    odd = 'a "b" \\ ü\n'
    for _ in range(3):
        for name in ("x", odd):
            allreduce(timeline, name)
    timeline.mark_cycle()  # not asked for
    timeline.close()
    of = lanes(read(path))
    assert list(of) == ["cycles", "x", odd]
    assert [len(lane) for lane in of.values()] == [0, 30, 30]


def test_many_tensors_share_an_activity(path: Path) -> None:
    timeline = Timeline(path)
    names = [f"t{n}" for n in range(100)]
    for name in names:
        timeline.start(name, "allreduce")
    timeline.activity_start(names, "MPI_ALLREDUCE")
    timeline.activity_end(names)
    for name in names:
        timeline.end(name)
    timeline.close()
    of = lanes(read(path))
    begins = {lane[1]["ts"] for name, lane in of.items() if name != "cycles"}
    assert len(begins) == 1  # one moment for all
    assert "args" not in of["t0"][-1]  # no result: it failed


def test_what_comes_at_the_wrong_time_is_left_out(path: Path) -> None:
    timeline = Timeline(path)
    timeline.negotiate_end("y")  # which began before
    timeline.activity_start(["y"], "MPI_BCAST")
    timeline.activity_end(["y"])
    timeline.end("y", "[1]", "int64")
    timeline.negotiate_start("x", "allgather")
    timeline.activity_start(["x"], "MPI_ALLGATHER")
    timeline.activity_end(["x"])
    timeline.start("x", "allgather")
    timeline.negotiate_end("x")
    timeline.negotiate_start("x", "allgather")
    timeline.end("x", "[1]", "int64")
    timeline.close()
    of = lanes(read(path))
    assert list(of) == ["cycles", "x"]
    told = [(e["ph"], e.get("name", "")) for e in of["x"]]
    assert told == [("B", "NEGOTIATE_ALLGATHER"), ("E", ""), ("B", "ALLGATHER"), ("E", "")]


def test_what_is_open_is_ended_as_unfinished(path: Path) -> None:
    timeline = Timeline(path)
    timeline.negotiate_start("waits", "broadcast")
    timeline.start("runs", "broadcast")
    timeline.activity_start(["runs"], "MPI_BCAST")
    timeline.close()
    events = read(path)
    nested(events)
    ends = [lane[-1]["args"] for name, lane in lanes(events).items() if name != "cycles"]
    assert ends == [{"unfinished": True}] * 2


CALLS: dict[str, Callable[[Timeline, str], None]] = {
    "negotiate_start": lambda t, n: t.negotiate_start(n, "alltoall"),
    "negotiate_end": lambda t, n: t.negotiate_end(n),
    "start": lambda t, n: t.start(n, "alltoall"),
    "activity_start": lambda t, n: t.activity_start([n, "c"], "QUEUE"),
    "activity_end": lambda t, n: t.activity_end(["c", n]),
    "end": lambda t, n: t.end(n, "[]", "int8"),
    "mark_cycle": lambda t, n: t.mark_cycle(),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(CALLS)), st.sampled_from("abc")), max_size=60))
def test_events_nest_whatever_is_reported(calls: list[tuple[str, str]]) -> None:
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    path = folder / f"timeline-{os.getpid()}.json"
    try:
        timeline = Timeline(path, mark_cycles=True)
        for call, name in calls:
            CALLS[call](timeline, name)
        timeline.close()
        nested(read(path))
    finally:
        path.unlink(missing_ok=True)


def test_many_threads_report(path: Path) -> None:
    timeline = Timeline(path)

    def work(number: int) -> None:
        for _ in range(200):
            allreduce(timeline, f"t{number}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    events = read(path)
    nested(events)
    assert [len(lane) for lane in lanes(events).values()] == [0] + [2000] * 8


def test_the_file_is_whole_while_it_grows(path: Path) -> None:
    timeline = Timeline(path)
    assert list(lanes(read(path))) == ["cycles"]
    for number in range(1, 4):
        allreduce(timeline, f"t{number}")
        until(lambda n=number: path.read_text().count("float32") == n)  # type: ignore[misc]
        assert len(lanes(read(path))) == number + 1
    timeline.close()
    assert len(read(path)) == 2 * 4 + 3 * 10


LOAD = """
import importlib.util, os, sys, threading
spec = importlib.util.spec_from_file_location("timeline", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["timeline"] = module
spec.loader.exec_module(module)
timeline = module.Timeline(sys.argv[2])
"""
KILLED = """
rest, number = threading.Event(), 0
while True:
    timeline.start("w", "allreduce")
    timeline.activity_start(["w"], "MPI_ALLREDUCE")
    if number != 300:
        timeline.end("w", "[1]", "float32")
    number += 1
    if number == 300:
        timeline.start("hangs", "broadcast")
    rest.wait(0.001)
"""


def test_the_file_is_whole_when_the_process_is_killed(path: Path) -> None:
    command = [sys.executable, "-c", LOAD + KILLED, str(module.__file__), str(path)]
    process = subprocess.Popen(command)
    try:
        until(lambda: path.exists() and "hangs" in path.read_text())
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait(10)
    of = lanes(read(path))
    assert len(of["w"]) >= 300 * 4
    assert [e["ph"] for e in of["hangs"]] == ["B"]  # that it never ended is seen


FORKED = """
timeline.start("parent", "allreduce")
child = os.fork()
if not child:
    timeline.start("child", "allreduce")
    sys.exit(0)
_, status = os.waitpid(child, 0)
sys.exit(status)
"""


def test_an_end_without_close_and_a_fork(path: Path) -> None:
    """What is left is written when the interpreter ends; a process that was forked writes none."""
    command = [sys.executable, "-W", "ignore", "-c", LOAD + FORKED, str(module.__file__), str(path)]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    events = read(path)
    nested(events)
    assert list(lanes(events)) == ["cycles", "parent"]


def one_warning(captured: str, *words: str) -> None:
    assert captured.count("\n") == 1, captured
    assert "timeline" in captured
    for word in words:
        assert word in captured, captured


@pytest.mark.parametrize(
    ("where", "word"),
    [("missing/timeline.json", ""), (".", ""), ("pipe", ""), ("/dev/full", "No space left")],
)
def test_a_path_that_cannot_be_written(
    where: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody reads it: opening it would wait for ever
    timeline = Timeline(tmp_path / where)
    assert not timeline.recording
    allreduce(timeline, "x")
    timeline.close()
    one_warning(capsys.readouterr().err, str(tmp_path / where), word)


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room for 2000 bytes: a write takes what fits, the next one fails."""
    pwrite, room = os.pwrite, 2000

    def write(descriptor: int, data: bytes, at: int) -> int:
        if at >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data[: room - at], at)

    monkeypatch.setattr(os, "pwrite", write)


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_fills_up_leaves_what_was_written(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = Timeline(path)
    allreduce(timeline, "first")
    until(lambda: "float32" in path.read_text())
    for number in range(50):
        allreduce(timeline, f"t{number}")
    until(lambda: not timeline.recording)
    timeline.close()
    one_warning(capsys.readouterr().err, str(path), "No space left")
    events = read(path)
    nested(events)
    assert list(lanes(events)) == ["cycles", "first"]


class Blocked:
    """A disk that takes nothing until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        write = module._File._write

        def wait(file: module._File, data: bytes) -> None:
            assert self.go.wait(60)
            write(file, data)

        monkeypatch.setattr(module._File, "_write", wait)


def test_a_slow_disk_keeps_nobody_waiting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(path)
    disk = Blocked(monkeypatch)
    for _ in range(2000):
        allreduce(timeline, "x")
    disk.go.set()
    timeline.close()
    assert len(lanes(read(path))["x"]) == 2000 * 10


def test_a_disk_that_is_too_slow_ends_the_timeline(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = Timeline(path)
    disk = Blocked(monkeypatch)
    monkeypatch.setattr(module, "LIMIT", 100)
    monkeypatch.setattr(module, "CLOSING", 0.01)
    for _ in range(20):
        allreduce(timeline, "x")
    assert not timeline.recording
    timeline.close()
    one_warning(capsys.readouterr().err, "faster than they can be written")
    disk.go.set()


def open_files() -> set[str]:
    return {os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()}


def test_nothing_is_left_after_close(path: Path) -> None:
    before = set(threading.enumerate())  # an earlier test's may end at any time
    timeline = Timeline(path)
    (writer,) = set(threading.enumerate()) - before
    assert str(path) in open_files()
    timeline.close()
    timeline.close()
    size = path.stat().st_size
    allreduce(timeline, "late")
    assert not timeline._reports
    assert path.stat().st_size == size
    assert not writer.is_alive()
    assert str(path) not in open_files()


def test_started_again_it_begins_anew(path: Path) -> None:
    """As hvd.stop_timeline and hvd.start_timeline do, while tensors are under way."""
    first = Timeline(path)
    first.start("x", "allreduce")
    first.close()
    second = Timeline(path)
    second.end("x", "[1]", "float32")
    allreduce(second, "x")
    second.close()
    assert len(lanes(read(path))["x"]) == 10


def test_a_report_costs_little(path: Path) -> None:
    """A microsecond on an idle machine; the bound is for a busy one."""
    timeline = Timeline(path)
    begun = time.thread_time()
    for _ in range(2000):
        allreduce(timeline, "x")
    spent = time.thread_time() - begun
    timeline.close()
    assert spent / (2000 * 10) < 20e-6
