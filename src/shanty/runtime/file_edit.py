"""Changes a file that others write too, such as ~/.ssh/authorized_keys.

One of ours at a time (a lock), and in one step: the new file is complete before it takes the
place of the old one, which must still be as it was read.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
import time
from typing import Callable, Iterator, Optional

from shanty.runtime.errors import StorageError

_ATTEMPTS = 50
_LOCK_WAIT = 10.0  # seconds; after that the comparison before the replacement has to do
_LEFT_OVER = 60.0  # seconds after which a temporary file is no longer in use


def edit_file(
    path: str,
    change: Callable[[Optional[bytes]], Optional[bytes]],
    then: Callable[[], None] = lambda: None,
) -> None:
    """Replace the file by what `change` makes of it; None stands for a file that is not there.

    `change` is called again when another program has written the file meanwhile; `then` is
    called once at the end, before another run may edit. Mode, owner and extended attributes
    stay; a new file is its owner's alone. Raises StorageError.
    """
    lock = os.path.join(os.path.expanduser("~"), ".shanty", "keys.lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(lock), exist_ok=True)
            held.enter_context(locked(lock, _LOCK_WAIT))
        for _ in range(_ATTEMPTS):
            real = os.path.realpath(path)  # where the file is a link, its target is replaced
            try:
                old = read_file(real)
                new = change(old)
                if new == old or _replace(real, old, new):
                    then()
                    return
            except OSError as error:
                if isinstance(error, FileNotFoundError) and os.path.isdir(os.path.dirname(real)):
                    continue  # the file went away between two looks at it
                why = error.strerror or str(error)
                if error.errno in (errno.EBUSY, errno.EROFS):
                    why += " (it is a mount of its own, or read-only)"
                fix = f"make {os.path.dirname(real)} writable for its owner"
                raise StorageError(f"cannot change {real}", why, fix) from error
    raise StorageError(
        f"cannot change {path}", "another program keeps writing it", "end it, and run again"
    )


def _replace(real: str, old: Optional[bytes], new: Optional[bytes]) -> bool:
    """Put `new` in the place of `old`; False when that is not what is there any more."""
    if new is None:
        if read_file(real) != old:
            return False
        os.unlink(real)
        return True
    folder, name = os.path.split(real)
    _sweep_temporary(folder, name)
    temporary = os.path.join(folder, f".{name}.shanty-{os.getpid()}-{os.urandom(3).hex()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            if old is not None:
                _copy_attributes(real, fd)
            file.write(new)
            file.flush()
            os.fsync(fd)
        if read_file(real) != old:
            return False
        if old is None:
            try:
                os.link(temporary, real)  # unlike a rename it leaves what appeared meanwhile
                return True
            except FileExistsError:
                return False
            except OSError:
                pass  # a file system without hard links
        os.replace(temporary, real)
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _copy_attributes(source: str, fd: int) -> None:
    """Give the open file the owner, the mode and the extended attributes of `source`."""
    status = os.stat(source)
    made = os.fstat(fd)
    if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
        with contextlib.suppress(OSError):  # sshd minds the owner, not the group
            os.fchown(fd, status.st_uid, status.st_gid)
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for name in os.listxattr(source):
                os.setxattr(fd, name, os.getxattr(source, name))


def _sweep_temporary(folder: str, name: str) -> None:
    """Remove what an edit that was killed left beside the file."""
    for path in glob.glob(os.path.join(glob.escape(folder), f".{name}.shanty-*")):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime < time.time() - _LEFT_OVER:
                os.unlink(path)


def read_file(path: str) -> Optional[bytes]:
    """What is in the file; None when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def locked(
    path: str, patience: float, waiting: Callable[[], None] = lambda: None
) -> Iterator[bool]:
    """Hold the lock of a file, which is made; False where that takes longer than `patience`.

    `waiting` is called again and again until then. On a file system without locks, it is not held.
    """
    import fcntl

    with open(path, "a") as lock:
        until = time.monotonic() + patience
        held = False
        while not held and time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                waiting()
                time.sleep(0.05)
            except OSError:
                held = True
        yield held
