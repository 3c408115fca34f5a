"""Locks a path, where two processes would undo each other's work."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import storage_errors


@contextlib.contextmanager
def exclusive_lock(path: Path, refusal: ShantyError) -> Iterator[None]:
    """Hold the lock `path` while the block lasts; `refusal` is raised where another holds it.

    A folder that is there is locked as it is, also on a full disk; else `path` becomes a file,
    which is removed at the end. The kernel lets go of what a killed process held.
    """
    folder = path.is_dir()
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino != os.fstat(lock).st_ino:
                raise FileNotFoundError  # who held it has just removed it
        except (BlockingIOError, FileNotFoundError):
            raise refusal from None
        try:
            yield
        finally:
            if not folder:
                with contextlib.suppress(OSError):
                    path.unlink()
    finally:
        os.close(lock)
