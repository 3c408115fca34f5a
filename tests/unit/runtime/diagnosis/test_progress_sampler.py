"""Samples of progress: probes, locks, frames."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runs import wait_for
from shanty.runtime import platform, proc_files
from shanty.runtime.diagnosis import host_load, progress_sampler
from shanty.runtime.diagnosis.elf import UnreadableError
from shanty.runtime.diagnosis.native_stacks import Frame, Look, look_at
from shanty.runtime.diagnosis.progress_sampler import ProgressSampler, native_frames
from shanty.runtime.rank.progress_probe import ProgressProbe
from shanty.runtime.rundir import RunDir

linux = pytest.mark.skipif(not platform.LINUX, reason="Linux only")


def test_the_frames_of_an_mpi_without_names() -> None:
    doors = (Frame("libmpi.so.12", ""), Frame("libmpi.so.12", ""))
    rest = (Frame("program", ""), Frame("program", "main"))
    look = Look((Frame("libfabric.so.1", "poll"), *doors, *rest), "MPI (a door)", 1)
    assert native_frames(look) == (("", 0, "MPI (a door)"), ("program", 0, "main"))
    outside = look._replace(call="")
    assert native_frames(outside) == (("libfabric.so.1", 0, "poll"), ("program", 0, "main"))


@linux
def test_a_thread_that_imports_mpi_sets_no_handler(tmp_path: Path) -> None:
    """Python lets only the main thread do that; the import must not fail of it."""
    path = tmp_path / "pulse"
    with ThreadPoolExecutor() as pool:
        pool.submit(ProgressProbe, str(path), platform.PROBE_SIGNAL).result()
    assert not path.exists()


RANK = """
import signal, sys, threading
sys.path.insert(0, sys.argv[1])
from progress_probe import ProgressProbe
number, what = int(sys.argv[3]), sys.argv[4]
ProgressProbe(sys.argv[2], number)
taken = {"replace": lambda *_: print("mine", flush=True), "ignore": signal.SIG_IGN}
if what in taken:
    signal.signal(number, taken[what])
lock = threading.Lock()
lock.acquire()
print(flush=True)
while what == "spin":
    sorted([1])
if what == "receive":
    import socket
    ends = socket.socketpair()
    ends[0].recv(1)
lock.acquire(timeout=60 if what == "limit" else -1)
"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().split()[2]


def waits(pid: int) -> bool:
    """Whether a process has come to its lock; another wait, as for its output, does not count."""
    where = Path(f"/proc/{pid}/wchan").read_text()
    return state(pid) == "S" and ("futex" in where or where in ("", "0"))  # 0: not to be known


@contextlib.contextmanager
def rank(run: RunDir, what: str) -> Iterator[int]:
    """Yields a process that answers probes as a rank does, and must say nothing."""
    path = run.rank_probe(0)
    path.parent.mkdir(parents=True)
    words = [str(Path(platform.__file__).parent / "rank"), str(path), str(platform.PROBE_SIGNAL)]
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, *words, what], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        if what == "receive":
            wait_for(lambda: platform.must_not_be_woken(process.pid), 10)
        else:
            wait_for(lambda: what == "spin" or waits(process.pid), 10)
        yield process.pid
    finally:
        process.kill()
        said = process.communicate()
    assert said == (b"", b"")


@linux
@pytest.mark.parametrize("what", ["limit", "spin"])
def test_answers_of_a_probe(tmp_path: Path, what: str) -> None:
    run = RunDir(tmp_path)

    def numbers() -> list[int]:
        return [int(each) for each in run.rank_probe(0).read_text().split()]

    with rank(run, what) as pid:
        for count in range(1, 9):
            os.kill(pid, platform.PROBE_SIGNAL)
            wait_for(lambda count=count: numbers()[1] == count, 10)
        moves = numbers()[2]
        assert moves <= 2 if what == "limit" else moves > 0


@linux
def test_a_rank_that_waits_without_a_limit_gives_no_answer(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with rank(run, "wait") as pid:
        os.kill(pid, platform.PROBE_SIGNAL)
        status = Path(f"/proc/{pid}/status")
        pending = f"ShdPnd:\t{1 << (platform.PROBE_SIGNAL - 1):016x}"
        wait_for(lambda: pending not in status.read_text() and state(pid) == "S", 10)
        assert run.rank_probe(0).read_text().split()[1] == "0"


@linux
def test_a_rank_that_has_no_probe_yet_when_it_is_first_seen(tmp_path: Path) -> None:
    """As one that still imports; a silent script is watched from there on."""
    run = RunDir(tmp_path)
    with rank(run, "wait") as pid:
        later = run.rank_probe(0).with_suffix(".later")
        run.rank_probe(0).rename(later)
        watch = ProgressSampler(run)
        (told,) = watch.look({("0", 0): {pid}}).ranks
        assert (told.still, told.inside) == (None, None)
        later.rename(run.rank_probe(0))
        (told,) = watch.look({("0", 0): {pid}}).ranks
        assert told.still is not None and told.inside is not None
        (told,) = watch.look({("0", 0): {pid}}).ranks
        assert told.still is not None and told.still > 0


@linux
@pytest.mark.parametrize("how", ["replace", "ignore"])
def test_a_script_that_takes_the_signal_gets_no_probe(tmp_path: Path, how: str) -> None:
    run = RunDir(tmp_path)
    with rank(run, how) as pid:
        assert not run.rank_probe(0).exists()
        watch = ProgressSampler(run)
        for _ in range(3):
            watch.look({("0", 0): {pid}})


@linux
def test_a_rank_that_receives_by_now_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal ends such a call with EINTR, and XGBoost's `recv` gives up then."""
    in_mpi = Look((Frame("libmpi.so", "MPI_Bcast"),), "MPI_Bcast", 1)
    monkeypatch.setattr(progress_sampler, "look_at", lambda pids: dict.fromkeys(pids, in_mpi))
    for what, signals in (("receive", 0), ("wait", 1)):
        sent: list[tuple[int, int]] = []
        with rank(RunDir(tmp_path / what), what) as pid, monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda *words, sent=sent: sent.append(words))
            watch = ProgressSampler(RunDir(tmp_path / what))
            for _ in range(3):
                watch.look({("0", 0): {pid}})
        assert len(sent) == signals


@linux
def test_a_lock_is_waited_for_though_a_signal_has_just_been_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(["sleep", "60"])
    seen = iter([{process.pid: (1, 2)}, {}, {}])
    monkeypatch.setattr(host_load, "locks", lambda: next(seen))
    try:
        watch = ProgressSampler(RunDir(tmp_path))
        told = [watch.look({("0", 0): {process.pid}}).ranks[0] for _ in range(3)]
    finally:
        process.kill()
        process.wait()
    assert [one.lock for one in told] == [("", 2), ("", 2), None]


@linux
def test_what_links_carried_before_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be silent and well for hours, and then its link gets slow."""
    now, sent = 1000.0, 0
    monkeypatch.setattr(progress_sampler.time, "monotonic", lambda: now)
    monkeypatch.setattr(proc_files, "links", lambda: {"eth0": (0, sent, 0)})
    watch = ProgressSampler(RunDir(tmp_path), bound=60.0)
    for rate in (100 << 20, 10 << 10):
        for _ in range(20):
            now, sent = now + 5.0, sent + 5 * rate
            load = watch.look({}).load
        assert load.links[0].bytes / load.seconds == rate
        assert 60.0 <= load.seconds <= 65.0


@linux
@pytest.mark.parametrize("readable", [True, False])
def test_nothing_is_sent_to_a_rank_that_cannot_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], readable: bool
) -> None:
    run = RunDir(tmp_path)
    sent: list[tuple[int, int]] = []

    def refuse(*_: object) -> None:
        raise UnreadableError("not allowed")

    with rank(run, "wait") as pid:
        if readable and not look_at([pid]):
            pytest.skip("ptrace is not allowed here")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "kill", lambda *words: sent.append(words))
            if not readable:
                patch.setattr(progress_sampler, "look_at", refuse)
            watch = ProgressSampler(run)
            for _ in range(3):
                (told,) = watch.look({("0", 0): {pid}}).ranks
    assert told.read is readable
    assert sent == ([(pid, platform.PROBE_SIGNAL)] if readable else [])
    assert ("no native stacks: not allowed" in capsys.readouterr().err) is not readable
