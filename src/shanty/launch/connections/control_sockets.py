"""Where the sockets of shared ssh connections are kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from shanty.runtime.errors import StorageError
from shanty.runtime.platform import scratch_root

# A socket's path has at most 103 bytes on macOS, 107 on Linux; ours add 1 + 20, and ssh adds 17
# to the name while it makes one.
_LONGEST = 103 - 21 - 17


def socket_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the sockets, made if need be; it belongs to this user and to nobody else.

    StorageError when somebody else has taken its place.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if _suits(runtime):
        folder = Path(runtime, "shanty")
        try:
            return _made(folder)
        except OSError:
            pass  # a session that has ended, or one of another user (su): /tmp will do
    folder = Path(scratch_root(), "ssh")
    try:
        _made(folder.parent)
        return _made(folder)
    except OSError as error:
        raise StorageError(
            f"the folder {folder} cannot be used for shared ssh connections",
            error.strerror or str(error),
            f"remove {folder.parent}, or set XDG_RUNTIME_DIR to a folder of your own",
        ) from error


def _suits(runtime: str) -> bool:
    """True for a folder whose name ssh takes as it is, and that leaves room for a socket's."""
    plain = not set(runtime) & set(" \t\"%'\\$~#")
    room = len(os.fsencode(runtime)) + len("/shanty") <= _LONGEST
    return runtime.startswith("/") and plain and room and Path(runtime).is_dir()


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(None, "it belongs to somebody else")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
