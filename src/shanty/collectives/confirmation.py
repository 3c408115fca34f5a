"""A rank's line to the controller of an elastic run. Importing this module starts no MPI.

The controller says which ranks were lost with their host, since Open MPI does not notice that by
itself. And a rank asks it, after each change, whether it may go on with the ranks that it has
found: a rank that was cut off with its host, or left behind, ends here. A question is a report to
the node agent of this host (SHANTY_REPORTS), an answer comes through a FIFO in the run's folder.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from shanty.runtime.rundir import ATTEMPT_DIR, RUN_DIR, RunDir

_PATIENCE = 10.0  # seconds for an answer: a host that went silent is noticed, and time to spare
_ENDED = 70  # the exit code of a rank that may not go on
_WITHOUT_SYNC, _THIS_PROCESS, _PROC = -200, 7, 22  # PMIX_ERR_PROC_TERM_WO_SYNC and others

_REPORTS = "SHANTY_REPORTS"  # the variable with the FIFO to the node agent

_answers: queue.SimpleQueue[str] = queue.SimpleQueue()
_numbers = itertools.count(1)
_start_failed = threading.Event()
_over = threading.Event()
_seat = -1  # the number that this rank began with; none outside of a run


def listen(seat: int) -> None:
    """Take the controller's words from now on. seat: the number that this rank began with."""
    global _seat
    folder = os.environ.get(ATTEMPT_DIR) or os.environ.get(RUN_DIR)
    if not folder or _REPORTS not in os.environ:
        return
    path = RunDir(Path(folder)).rank_word(seat)
    path.unlink(missing_ok=True)  # of a lost rank whose place this one takes
    os.mkfifo(path, 0o600)
    fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # so that it never ends
    quiet_thread(lambda: _listen(fifo))
    _seat = seat


def quiet_thread(call: Callable[[], None]) -> threading.Thread:
    """Start a thread that takes no signals and does not keep the process alive."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread = threading.Thread(target=call, name="shanty words", daemon=True)
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def confirm(without: Collection[int]) -> None:
    """Ask whether this rank may go on without these ranks, by their seats; end it if it may not.

    The answer comes once all that it goes on with have asked the same.
    """
    _ask("membership", ",".join(map(str, sorted(without))))


def confirm_place() -> None:
    """Ask whether this rank still is a part of the run, and end it if it is not."""
    _ask("place", f"#{next(_numbers)}")


def dismiss() -> None:
    """Have the controller end the ranks that were started again and have not joined."""
    if _seat >= 0:
        _report("dismiss", "")


def start_has_failed() -> bool:
    """Return whether a rank that was started again has ended before it joined; once."""
    failed = _start_failed.is_set()
    _start_failed.clear()
    return failed


def say_has_state() -> None:
    """Report that this rank has the state of the training."""
    if _seat >= 0:
        _report("has-state", "")


def is_over(seconds: float) -> bool:
    """Return whether a rank has come to the end of the script; waits so long for it."""
    return _over.wait(seconds)


def _ask(event: str, word: str) -> None:
    if _seat < 0:
        return
    _report(event, word)
    until = time.monotonic() + _PATIENCE
    with suppress(queue.Empty):
        while (left := until - time.monotonic()) > 0:
            if _answers.get(timeout=left) == word:  # another is that to a question before
                return
    text = (
        f"shanty: rank {_seat} ends, and saves nothing more: the controller has not confirmed "
        f"within {_PATIENCE:.0f} s that it is still a part of the run"
    )
    print(text, file=sys.stderr, flush=True)
    os._exit(_ENDED)  # no exit handler may save anything


def _report(event: str, word: str) -> None:
    report = {"event": event, "rank": _seat, "world": "0", "word": word}
    with suppress(OSError):  # the node agent is gone: no answer comes
        channel = os.open(os.environ[_REPORTS], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(channel, True)
        try:
            os.write(channel, json.dumps(report).encode() + b"\n")
        finally:
            os.close(channel)


def _listen(fifo: int) -> None:
    rest = b""
    while data := os.read(fifo, 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            kind, _, text = line.decode().partition(" ")
            if kind == "confirmed":
                _answers.put(text)
            elif kind == "lost":
                for rank in map(int, text.split(",")):
                    _declare(rank)
            elif kind == "unstarted":
                _start_failed.set()
            elif kind == "over":
                _over.set()


class _Process(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint16),
        ("process", ctypes.POINTER(_Process)),
        ("rest", ctypes.c_uint64 * 6),
    ]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


_told: list[object] = []  # what PMIx may read later


def _declare(rank: int) -> None:
    """Tell the MPI of this process that a rank is lost, as its launcher would."""
    with Path("/proc/self/maps").open(errors="replace") as file:
        path = next((line[line.index("/") :].strip() for line in file if "/libpmix." in line), "")
    if not path:
        return
    namespace = os.environ["PMIX_NAMESPACE"].encode()
    own = _Process(namespace, int(os.environ["PMIX_RANK"]))
    lost = _Process(namespace, rank)
    info = (_Info * 1)()
    info[0].key = b"pmix.evproc"
    info[0].value.type, info[0].value.process = _PROC, ctypes.pointer(lost)
    _told.append((own, lost, info))
    notify = ctypes.CDLL(path).PMIx_Notify_event
    notify.argtypes = [
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_void_p, ctypes.c_void_p),
    ]
    notify(_WITHOUT_SYNC, ctypes.byref(own), _THIS_PROCESS, info, 1, None, None)
