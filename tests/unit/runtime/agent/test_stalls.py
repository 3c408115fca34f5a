"""Stalls: which rank is the straggler, native stacks, probes, settings."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runs import wait_for
from shanty.cli.options import stall_after
from shanty.cli.stacks import grouped
from shanty.launch import settings
from shanty.runtime import platform
from shanty.runtime.agent import host_load, native_stacks, progress_sampler
from shanty.runtime.agent.elf import Image, UnreadableError, evaluate
from shanty.runtime.agent.native_stacks import Frame, Look, look_at, mpi_name
from shanty.runtime.agent.node_agent import NodeAgent
from shanty.runtime.agent.progress_sampler import ProgressSampler, native_frames
from shanty.runtime.agent.stacks import with_native
from shanty.runtime.agent.straggler import Standing, judge
from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RunDir

linux = pytest.mark.skipif(not platform.LINUX, reason="Linux only")
LINK = {"name": "eth0", "carries": True, "used": True, "bytes": 0, "errors": 0}
LOAD = {"cores": 2, "links": [LINK], "tcp": [100, 0], "age": 60.0}
MAIN = ["/w/train.py", 9, "main"]


def rank(number: int, *frames: list[Any], host: str = "a", **told: Any) -> Standing:
    """A rank that waits in MPI_Allreduce, unless told otherwise."""
    usual = {
        "rank": number,
        "host": host,
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
    return Standing({**usual, **told}, threads)


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
    ("straggler", "doing"),
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
def test_the_straggler(straggler: Standing, doing: str) -> None:
    said = what(rank(0), rank(1), straggler)
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
    wrong = {"a": LOAD, "b": {**LOAD, "links": [{**LINK, "carries": False}]}}
    down = judge(both, {}, wrong, 60)
    assert down is not None
    assert down.what.endswith(": all ranks wait in MPI_Allreduce; link eth0 of b is down")
    assert (down.stragglers, down.host) == ((1,), "b")
    lost = "all ranks wait in MPI_Allreduce; 30 of the 100 packets that a sent were lost"
    assert what(rank(0), rank(1), tcp=[100, 30]) == lost


HANDSHAKE = (
    ["/v/shanty/xgboost/handshake.py", 111, "_wait"],
    ["/v/shanty/xgboost/handshake.py", 70, "conclude"],
    ["/v/shanty/compat/xgboost_rabit/calls.py", 9, "train"],
    TRAIN,
)


def test_a_rank_that_waits_for_others_in_shanty_xgboost() -> None:
    """It naps, and looks into MPI in between; the one that has ended is to be named."""
    for seen in ({}, {"call": "MPI_Iprobe"}, {"through": 3.0}):
        waiting = away(1, *HANDSHAKE, cpu=0.01, ready=0.0, **seen)
        at_its_end = rank(0, TRAIN, call="MPI_Finalize")
        said = what(at_its_end, waiting)
        assert said == "rank 0 on a is at its end, in MPI_Finalize, rank 1 waits in shanty.xgboost"
    assert waiting.place == "train (train.py:31)"
    assert what(waiting, rank(0), ended={2: "b"}).startswith("rank 2 on b is no more")
    assert what(waiting, rank(0), away(2, TRAIN)).startswith("rank 2 on a is busy in train")
    assert what(waiting, away(0)) == ""  # nobody has measured how long it waits


def test_a_rank_that_loads_for_shanty_xgboost_is_at_work() -> None:
    """What is done `together` has the same module further out."""
    loading = ["/v/shanty/xgboost/text/files.py", 5, "read"]
    together = ["/v/shanty/xgboost/handshake.py", 150, "together"]
    assert what(rank(0), away(1, loading, together, TRAIN)).startswith(
        "rank 1 on a is busy in train (train.py:31)"
    )


@pytest.mark.parametrize(("number", "whom"), [(0, "rank 1, 2"), (1, "rank 0, which hears all")])
def test_a_rank_says_whom_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, whom: str
) -> None:
    pytest.importorskip("xgboost")
    from shanty.xgboost import handshake
    from shanty.xgboost.communication import Communicator

    monkeypatch.setattr(handshake, "_LONG", -1)
    comm: Any = SimpleNamespace(rank=number, size=3, iprobe=lambda **_: False)
    looks = iter([False, False, True])
    shaking = handshake.Handshake(Communicator(comm), "training")
    shaking._outcomes[0] = None
    shaking._wait(lambda: next(looks))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"shanty.xgboost: training: rank {number} is still waiting for {whom}")


def test_collectives_of_torch() -> None:
    frames = (
        ["/v/torch/distributed/distributed_c10d.py", 7, "all_reduce"],
        ["/v/torch/distributed/c10d_logger.py", 8, "wrapper"],
        MAIN,
    )
    waiting = away(0, *frames, still=70.0)
    assert (waiting.call, waiting.waits) == ("torch all_reduce", 70.0)
    assert away(0, *frames).waits == 0.0


def test_a_rank_that_cannot_be_looked_at_is_blamed_last() -> None:
    unread = away(1, ["/v/torch/distributed/distributed_c10d.py", 7, "recv"], MAIN, read=False)
    assert what(rank(0), unread) == (
        "rank 1 on a is busy in main (train.py:9), rank 0 waits in MPI_Allreduce"
    )
    assert what(rank(0), unread, away(2, TRAIN)).startswith("rank 2 on a is busy in train")
    assert what(unread, away(2, read=False)) == ""


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
        wait_for(lambda: "S" in Path(f"/proc/{process.pid}/stat").read_text().split()[2])
        looks = look_at([process.pid, 2**22 + 1])
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


ASLEEP = """
import ctypes, select
libc = ctypes.CDLL(None, use_errno=True)
epoll, events = select.epoll(), ctypes.create_string_buffer(12)
print(flush=True)
print(libc.epoll_wait(epoll.fileno(), events, 1, 1500), ctypes.get_errno(), flush=True)
"""


@linux
def test_a_look_does_not_wake_a_thread() -> None:
    process = subprocess.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    call = Path(f"/proc/{process.pid}/syscall")
    wait_for(lambda: "S" in Path(f"/proc/{process.pid}/stat").read_text().split()[2])
    try:
        if not call.read_text().split()[0].isdigit():
            pytest.skip("the kernel does not tell which call it is in")
        for _ in range(5):
            assert look_at([process.pid]).get(process.pid) == Look((), "", 0)
        assert process.communicate(timeout=30)[0] == b"0 0\n"
    finally:
        process.kill()
        process.communicate()


@linux
def test_a_stack_that_could_not_be_walked_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Look((Frame("libmpi.so.12", ""),), "", 0, whole=False)
    found = Look((Frame("libmpi.so.12", ""), Frame("program", "main")), "MPI_Recv", 7)
    process = subprocess.Popen(["sleep", "60"])
    try:
        if not look_at([process.pid]):
            pytest.skip("ptrace is not allowed here")
        walks = [lost, lost, found]
        monkeypatch.setattr(native_stacks, "_walk", lambda *_: walks.pop(0))
        assert look_at([process.pid]) == {process.pid: found}
        monkeypatch.setattr(native_stacks, "_walk", lambda *_: lost)
        assert look_at([process.pid]) == {process.pid: lost}
    finally:
        process.kill()
        process.wait()


def test_the_frames_of_an_mpi_without_names() -> None:
    doors = (Frame("libmpi.so.12", ""), Frame("libmpi.so.12", ""))
    rest = (Frame("program", ""), Frame("program", "main"))
    look = Look((Frame("libfabric.so.1", "poll"), *doors, *rest), "MPI (a door)", 1)
    assert native_frames(look) == [["", 0, "MPI (a door)"], ["program", 0, "main"]]
    outside = look._replace(call="")
    assert native_frames(outside) == [["libfabric.so.1", 0, "poll"], ["program", 0, "main"]]


def test_what_is_no_program() -> None:
    with pytest.raises(UnreadableError):
        Image(b"#!/bin/sh\n" + bytes(100))


def program(instructions: bytes) -> bytes:
    """An ELF file with one function, at 4096; `instructions` say how to leave it."""
    everything = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 8192, 8192, 4096)
    index_at, common_at, own_at = 256, 276, 300
    index = struct.pack("<IIQQQQQQ", 0x6474E550, 4, *3 * (index_at,), 20, 20, 4)
    file = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<QQ", 64, 0)
    file += struct.pack("<IHHHHHH", 0, 64, 56, 2, 0, 0, 0) + everything + index
    file = file.ljust(index_at, b"\0") + struct.pack("<BBBBiI", 1, 0x1B, 0x03, 0x3B, 0, 1)
    file += struct.pack("<ii", 4096 - index_at, own_at - index_at)
    # The caller's stack is at register 7 + 8, the address to go back to right below that.
    common = b"\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01".ljust(16, b"\0")
    file += struct.pack("<II", 20, 0) + common
    length, begin = 13 + len(instructions), 4096 - own_at - 8
    file += struct.pack("<IIiIB", length, own_at + 4 - common_at, begin, 256, 0)
    return file + instructions


def test_the_way_out_of_a_function() -> None:
    assert Image(program(b"")).exit(4100)[:2] == (("register", 7, 8), {16: ("offset", -8)})
    deeper = Image(program(b"\x44\x0e\x10\x48\x0d\x06"))  # + 4: r7 + 16, + 12: r6 + 16
    cfa = [deeper.exit(place).cfa for place in (4099, 4100, 4108)]
    assert cfa == [("register", 7, 8), ("register", 7, 16), ("register", 6, 16)]


def nowhere(_address: int) -> int:
    raise UnreadableError("no memory")


def values(image: Callable[[], Image], expressions: list[bytes]) -> None:
    """Ask for all that a walk asks for; only an UnreadableError may come of it."""
    with contextlib.suppress(UnreadableError):
        known = image()
        assert isinstance(known.symbol(4100), str)
        leave = known.exit(4100)
        assert leave.cfa[0] == "value" or [type(part) for part in leave.cfa[1:]] == [int, int]
        rules = [leave.cfa, *leave.rules.values()]
        expressions = [*expressions, *(r[1] for r in rules if r[0] in ("value", "at"))]
    for expression in expressions:
        with contextlib.suppress(UnreadableError):
            assert 0 <= evaluate(expression, {7: 1 << 47}, nowhere, (1 << 47,)) < 1 << 64


# Likely bytes: instructions and operations that are known, small numbers, and the largest.
Odd = st.lists(
    st.sampled_from([*range(0x14), 0x16, 0x1A, 0x1C, 0x22, 0x24, 0x2A, 0x2E, 0x44, 0x77, 0xFF])
    | st.integers(0, 255),
    max_size=24,
).map(bytes)


@given(instructions=Odd, expression=Odd)
@example(b"\x0f\x01\x30\x0d\x07", b"\x22")  # a register for an address that has none
@example(b"\x0f\x01\x30\x0e\x08", b"\x09\xff\x24")  # shifted by - 1
@example(b"\x0b", b"\x30" + 3 * b"\x0a\xff\xff\x24")
@example(b"\x0f\x00", b"")
def test_odd_ways_out_of_a_function(instructions: bytes, expression: bytes) -> None:
    values(lambda: Image(program(instructions)), [expression])


@given(at=st.integers(0, 312), patch=st.binary(min_size=1, max_size=8))
@example(at=32, patch=b"\xff" * 8)  # where the program headers are
@example(at=40, patch=b"\xff" * 8)  # where the sections are
def test_damaged_programs(at: int, patch: bytes) -> None:
    file = bytearray(program(b"\x44\x0e\x10"))
    file[at : at + len(patch)] = patch
    struct.pack_into("<HH", file, 58, 64, 1)
    values(lambda: Image(file), [])


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


def test_the_settings(tmp_path: Path) -> None:
    file = tmp_path / settings.FILE
    file.write_text("on_stall = 'stop'\nstall_after = 0\n")
    found = settings.load(tmp_path)
    assert (found.on_stall, found.stall_after) == ("stop", 0)
    file.write_text("on_stall = 'shrug'\n")
    with pytest.raises(UsageError, match="warn or stop"):
        settings.load(tmp_path)
    assert [stall_after(text) for text in ("off", "0", "2m")] == [0, 0, 120]


def test_a_rank_that_stops_when_nobody_waits_for_it_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a look has left behind is no end of a child."""
    trap = 5 << 8 | 0x7F
    told = iter([(11, trap), (12, 3 << 8), (0, 0)])
    monkeypatch.setattr(os, "waitpid", lambda *_: next(told))
    agent: Any = SimpleNamespace(ended=[])
    agent.child_ended = lambda pid, code: agent.ended.append((pid, code))
    NodeAgent._reap(agent)
    assert agent.ended == [(12, 3)]
