"""Samples of progress: probes, locks, frames."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.agent import host_load, progress_sampler
from shanty.runtime.agent.elf import UnreadableError
from shanty.runtime.agent.native_stacks import Frame, Look, look_at
from shanty.runtime.agent.progress_sampler import ProgressSampler, native_frames
from shanty.runtime.rank.progress_probe import ProgressProbe
from shanty.runtime.rundir import RunDir

linux = pytest.mark.skipif(not platform.LINUX, reason="Linux only")


def test_the_frames_of_an_mpi_without_names() -> None:
    doors = (Frame("libmpi.so.12", ""), Frame("libmpi.so.12", ""))
    rest = (Frame("program", ""), Frame("program", "main"))
    look = Look((Frame("libfabric.so.1", "poll"), *doors, *rest), "MPI (a door)", 1)
    assert native_frames(look) == [["", 0, "MPI (a door)"], ["program", 0, "main"]]
    outside = look._replace(call="")
    assert native_frames(outside) == [["libfabric.so.1", 0, "poll"], ["program", 0, "main"]]


@linux
def test_a_thread_that_imports_mpi_sets_no_handler(tmp_path: Path) -> None:
    """Python lets only the main thread do that; the import must not fail of it."""
    path = tmp_path / "pulse"
    with ThreadPoolExecutor() as pool:
        pool.submit(ProgressProbe, str(path), platform.PROBE_SIGNAL).result()
    assert not path.exists()


BLOCKED = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from progress_probe import ProgressProbe
ProgressProbe(sys.argv[2], int(sys.argv[3]))
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
def test_answers_of_a_probe(tmp_path: Path, what: str) -> None:
    folder = Path(platform.__file__).parent / "rank"
    path = tmp_path / "pulse"
    words = [str(folder), str(path), str(platform.PROBE_SIGNAL), what]
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
                os.kill(process.pid, platform.PROBE_SIGNAL)
                wait_for(lambda count=count: answered() == count, 10)  # type: ignore[misc]
            assert moves() <= 2 if what == "limit" else moves() > 0
        else:
            wait_for(lambda: state() == "S", 10)
            os.kill(process.pid, platform.PROBE_SIGNAL)
            pending = Path(f"/proc/{process.pid}/status")
            mask = f"{1 << (platform.PROBE_SIGNAL - 1):016x}"
            wait_for(lambda: f"ShdPnd:\t{mask}" not in pending.read_text() and state() == "S", 10)
            assert answered() == 0
    finally:
        process.kill()
        _, said = process.communicate()
    assert said == b""


TAKEN = """
import signal, sys, threading
sys.path.insert(0, sys.argv[1])
from progress_probe import ProgressProbe
number = int(sys.argv[3])
ProgressProbe(sys.argv[2], number)
handlers = {"replace": lambda *_: print("mine", flush=True), "ignore": signal.SIG_IGN}
signal.signal(number, handlers[sys.argv[4]])
lock = threading.Lock()
lock.acquire()
print(flush=True)
lock.acquire()
"""


@linux
@pytest.mark.parametrize("how", ["replace", "ignore"])
def test_a_script_that_takes_the_signal_gets_no_probe(tmp_path: Path, how: str) -> None:
    run = RunDir(tmp_path)
    path = run.rank_probe(0)
    path.parent.mkdir()
    folder = Path(platform.__file__).parent / "rank"
    words = [str(folder), str(path), str(platform.PROBE_SIGNAL), how]
    process = subprocess.Popen([sys.executable, "-c", TAKEN, *words], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert not path.exists()
        wait_for(lambda: "S" in Path(f"/proc/{process.pid}/stat").read_text().split()[2])
        watch = ProgressSampler(run)
        for _ in range(3):
            watch.look({("0", 0): {process.pid}})
    finally:
        process.kill()
        said, _ = process.communicate()
    assert said == b""


@linux
def test_a_lock_is_waited_for_though_a_signal_has_just_been_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(["sleep", "60"])
    seen = iter([{process.pid: (1, 2)}, {}, {}])
    monkeypatch.setattr(host_load, "locks", lambda: next(seen))
    try:
        watch = ProgressSampler(RunDir(tmp_path))
        told = [watch.look({("0", 0): {process.pid}})["moves"][0] for _ in range(3)]
    finally:
        process.kill()
        process.wait()
    assert [one.get("lock") for one in told] == [["", 2], ["", 2], None]


@linux
def test_what_links_carried_before_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be silent and well for hours, and then its link gets slow."""
    now, sent = 1000.0, 0
    monkeypatch.setattr(progress_sampler.time, "monotonic", lambda: now)
    monkeypatch.setattr(host_load, "_links", lambda: {"eth0": (0, sent, 0)})
    watch = ProgressSampler(RunDir(tmp_path), bound=60.0)
    for rate in (100 << 20, 10 << 10):
        for _ in range(20):
            now, sent = now + 5.0, sent + 5 * rate
            load = watch.look({})["load"]
        assert load["links"][0]["bytes"] / load["seconds"] == rate
        assert 60.0 <= load["seconds"] <= 65.0


@linux
@pytest.mark.parametrize("readable", [True, False])
def test_nothing_is_sent_to_a_rank_that_cannot_be_looked_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    readable: bool,
) -> None:
    run = RunDir(tmp_path)
    run.rank_probe(0).parent.mkdir()
    folder = Path(platform.__file__).parent / "rank"
    words = [str(folder), str(run.rank_probe(0)), str(platform.PROBE_SIGNAL), "wait"]
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))

    def refuse(*_: object) -> None:
        raise UnreadableError("not allowed")

    try:
        assert process.stdout is not None
        process.stdout.readline()
        wait_for(lambda: "S" in Path(f"/proc/{process.pid}/stat").read_text().split()[2])
        if readable and not look_at([process.pid]):
            pytest.skip("ptrace is not allowed here")
        if not readable:
            monkeypatch.setattr(progress_sampler, "look_at", refuse)
        watch = ProgressSampler(run)
        for _ in range(3):
            (told,) = watch.look({("0", 0): {process.pid}})["moves"]
        assert told["read"] is readable
        assert sent == ([(process.pid, platform.PROBE_SIGNAL)] if readable else [])
        said = capsys.readouterr().err
        assert ("no native stacks: not allowed" in said) is not readable
    finally:
        monkeypatch.undo()
        process.kill()
        process.communicate()
