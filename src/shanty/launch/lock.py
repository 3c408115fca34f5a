"""Locks between processes; the kernel releases those of a process that is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import storage_errors


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock `path` while the block lasts; waits for it."""
    lock = _opened(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def exclusive_lock(path: Path, refusal: ShantyError) -> Iterator[None]:
    """Hold the lock `path` while the block lasts; raises `refusal` where another process has it.

    An existing folder is locked as it is. A file is removed at the end.
    """
    folder = path.is_dir()
    lock = take(path)
    if lock is None:
        raise refusal
    try:
        yield
    finally:
        if not folder:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(lock)


def take(path: Path) -> int | None:
    """Lock a file for as long as this process lives; None where another process has it."""
    lock = _opened(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(path.stat(), os.fstat(lock)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass  # not found: the process that had it has just removed it
    os.close(lock)
    return None


def is_locked(path: Path) -> bool:
    """Return whether another process holds a lock."""
    if not path.exists():
        return False
    lock = take(path)
    if lock is not None:
        os.close(lock)
    return lock is None


def _opened(path: Path) -> int:
    """Open a folder, which can be locked on a full disk too, or a file, which is made."""
    with storage_errors(path):
        if path.is_dir():
            return os.open(path, os.O_RDONLY)
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
