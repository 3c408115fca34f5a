"""One process at a time, where two would undo each other's work."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shanty.carry.errors import ShantyError
from shanty.carry.rundir import storage_errors


@contextlib.contextmanager
def alone(path: Path, refusal: ShantyError) -> Iterator[None]:
    """Hold the lock `path` while the block lasts; `refusal` is raised where another holds it.

    The file is removed at the end, and the kernel lets go of what a killed process held.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                raise FileNotFoundError  # who held it has just removed it
        except (BlockingIOError, FileNotFoundError):
            raise refusal from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
