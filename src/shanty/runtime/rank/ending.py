"""Ends a failed rank as Python ends, except that MPI_Finalize is not called.

MPI_Finalize would wait for the other ranks. Everything that Python does before it is done here, in
the same order and within a bound: threads are joined, exit handlers run, open files are written and
closed. Loaded by a rank that fails, or by its fork server, and never before.
"""

from __future__ import annotations

import _io
import _thread
import atexit
import contextlib
import gc
import os
import signal
import stat
import sys
import time
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, NoReturn

GRACE = "SHANTY_STOP_GRACE"  # the variable with the seconds that ranks have from SIGTERM to SIGKILL
_THREADS, _ALL = 0.8, 0.95  # the shares of them in which threads, and everything, has to end
# Writers that are not files of `io`, by their modules: all write their last part when closed.
_WRITERS = (("zipfile", "ZipFile"), ("shelve", "Shelf"), ("h5py", "File"))
_called = type(gc.freeze).__call__
_BUFFERS = (_io.BufferedWriter, _io.BufferedRandom, _io.BufferedRWPair)
_FAILING = "SHANTY_FAILING"  # as in `rundir`: exit handlers of shanty's own look for it


def end(rank: int, code: int, frozen: int = 0) -> NoReturn:
    """Ends this process with `code`; at the latest just before SIGKILL would.

    frozen: how many objects without open files were frozen (`gc.freeze`) before it was forked.
    """
    ignore_term()
    os.environ[_FAILING] = "1"
    began = time.monotonic()
    grace = float(os.environ.get(GRACE, "5"))
    # Where no thread can be started, as at the end of Python 3.12, SIGKILL is the bound.
    _safely(lambda: _thread.start_new_thread(_give_up, (rank, code, grace * _ALL)))
    files: List[Callable[[], Any]] = []
    _safely(lambda: files.extend(write_files(frozen)))  # whatever comes of the rest
    _join_threads(rank, began + grace * _THREADS)
    _safely(atexit._run_exitfuncs)
    before = [file for file in (each() for each in files) if file is not None]
    later: List[Any] = []  # which may write into those
    _safely(lambda: later.extend(_found(gc.get_objects())))
    _close([*later, *before])
    leave(code)


def leave(code: int) -> NoReturn:
    """Ends this process at once, after flushing its output."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _safely(stream.flush)
    os._exit(code)


def ignore_term() -> None:
    """Ignores SIGTERM: this process ends by itself."""
    _safely(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))  # not outside the main thread


def _safely(call: Callable[[], object]) -> None:
    """Call it; an exception must not keep the rank from ending."""
    with contextlib.suppress(BaseException):  # Python itself would go on, too
        call()


def _join_threads(rank: int, until: float) -> None:
    """Wait for the threads that Python waits for, and for the work submitted to pools."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    over = _thread.allocate_lock()
    over.acquire()

    def finish_pools() -> None:  # what threading calls before it joins threads
        for call in reversed(threading._threading_atexits):
            _safely(call)
        over.release()

    try:
        _thread.start_new_thread(finish_pools, ())
    except RuntimeError:  # too many threads, or Python 3.12 is ending
        finish_pools()
    over.acquire(timeout=max(0.0, until - time.monotonic()))
    main = threading.main_thread()
    while True:
        left = [t for t in threading.enumerate() if not t.daemon and t is not main]
        seconds = until - time.monotonic()
        if not left or seconds <= 0:
            break
        left[0].join(seconds)
    if left:
        names = ", ".join(f"{t.name!r}{_place(t.ident)}" for t in left)
        _say(rank, f"does not wait any longer for its thread{'s' * (len(left) > 1)} {names}")


def _give_up(rank: int, code: int, seconds: float) -> None:
    """End a process whose exit handlers, or files, take longer than that."""
    time.sleep(seconds)
    threading = sys.modules.get("threading")
    where = _place(threading.main_thread().ident) if threading is not None else ""
    _say(rank, f"does not wait any longer for its exit handlers and open files{where}")
    os._exit(code)


def _place(thread: Any) -> str:
    """Return where a thread is, in parentheses."""
    gc.disable()  # before Python 3.12, the next call may wait for it, and it for the call
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(os.path.dirname(os.__file__)):
        frame = frame.f_back  # of the standard library, as the loop of a thread is
    if frame is None or frame.f_code.co_filename == __file__:
        return ""
    return f" ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def _say(rank: int, what: str) -> None:
    os.write(2, f"shanty: rank {rank} {what}\n".encode(errors="replace"))


def write_files(frozen: int = 0) -> List[Callable[[], Any]]:
    """Write the buffers of open files. Returns what returns each, or None where it is gone."""
    if not frozen or gc.get_freeze_count() > frozen:
        gc.unfreeze()  # else objects that the script has frozen are not found
    # The next look is at new objects alone: this one takes long in a large program. No other thread
    # gets a turn in between.
    objects, _ = map(_called, (gc.get_objects, gc.freeze))
    found = _found(objects)
    for each in _in_order(found):
        if _is_on_disk(each):  # others may block
            _safely(each.flush)
    return [_weakly(each) for each in found]


def _close(files: List[Any]) -> None:
    """Close files, with what they write then."""
    import ctypes

    for each in _in_order(files):
        _safely(each.close)
    _safely(lambda: ctypes.CDLL(None).fflush(None))  # those of C


def _found(objects: List[Any]) -> List[Any]:
    """Return those that are open files or writers, but for the standard streams."""
    own = {id(stream) for stream in _standard_streams()}
    modules = [getattr(sys.modules.get(module), name, None) for module, name in _WRITERS]
    kinds = {id(kind) for kind in (_io._IOBase, *modules) if isinstance(kind, type)}
    # A large program has a million objects, but few types. Code of theirs is not run, as it would
    # be by isinstance(), issubclass() and hash() for some.
    bases = type.__dict__["__mro__"].__get__
    types = {id(kind): kind for kind in map(type, objects)}
    wanted = {at for at, kind in types.items() if kinds.intersection(map(id, bases(kind)))}
    return [each for each in objects if id(type(each)) in wanted and id(each) not in own]


def has_files(objects: List[Any]) -> bool:
    """Return True where one of them may have to be written at the end."""
    return any(map(_may_be_written, _found(objects)))


def _may_be_written(file: Any) -> bool:
    kind = type(file)
    if kind in (_io.BytesIO, _io.StringIO):
        return False
    return kind.__module__ != "_io" or (not file.closed and file.writable())


def _in_order(files: List[Any]) -> List[Any]:
    """Sort files: those that write into others first. Texts, then compressed data, then files."""
    return sorted(files, key=lambda each: _layer(type(each)))


def _weakly(file: Any) -> Callable[[], Any]:
    try:
        return ref(file)
    except TypeError:  # a class of the script's own
        return lambda: file


def _layer(kind: type) -> int:
    if issubclass(kind, _io._TextIOBase):
        return 0
    return 2 if issubclass(kind, (*_BUFFERS, _io._RawIOBase)) else 1


def _is_on_disk(file: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except Exception:  # noqa: BLE001  it is closed, in memory, or a class of the script's own
        return False


def _standard_streams() -> List[Any]:
    """Return the streams that stay open, with their inner streams."""
    streams: List[Any] = [sys.stdin, sys.stdout, sys.stderr]
    streams += [sys.__stdin__, sys.__stdout__, sys.__stderr__]
    for name in ("buffer", "raw"):
        streams += [getattr(each, name, None) for each in streams]
    return streams
