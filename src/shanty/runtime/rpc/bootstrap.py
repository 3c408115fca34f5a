"""The first thing that runs on a host: sent as source, it finds or unpacks our code, and serves.

It does not belong to the package on that host, which may not be there yet, so it imports nothing
of it before `meet` has found it. Each of its messages is a line that begins with MARK, since a
login shell may have printed anything before.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from typing import Any, BinaryIO

MARK = b"\x01shanty "


def meet(source: BinaryIO, version: str) -> None:
    """Say what is here, take our code (`version` is its hash) if it is missing, and serve.

    After the first word the client sends `"SIZE\\n"` and as many bytes of tar.gz, or nothing
    when we have the version.
    """
    sink = os.fdopen(os.dup(1), "wb")  # not inherited, so no child of a verb writes into it
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # `source` is a copy of it too
    os.close(null)
    sys.executable = os.environ.get("SHANTY_PORTABLE_PYTHON", sys.executable)  # as in boot.py
    home = os.environ.get("SHANTY_HOME") or os.path.expanduser("~/.shanty")
    root = os.path.join(home, "store", "bundle", version)
    have = os.path.isdir(root) and digest_of(os.path.join(root, "shanty")) == version
    _say(
        sink,
        python=sys.executable,
        version="{}.{}.{}".format(*sys.version_info[:3]),
        home=home,
        root=root,
        have=have,
        damaged=not have and os.path.isdir(root),
    )
    if not have:
        data = source.read(int(source.readline() or b"0"))
        own = os.path.expanduser("~")
        if not os.environ.get("SHANTY_HOME") and not os.path.isdir(own):
            _say(sink, error=own + ": the home folder does not exist")
            return
        try:
            _unpack(data, root)
        except OSError as error:
            lack = _lack(home) if error.errno == errno.ENOSPC else ""
            _say(sink, error=f"{error.filename or root}: {error.strerror or error}{lack}")
            return
        _say(sink, placed=root)
    sys.path.insert(0, root)
    from shanty.runtime.rpc import server

    server.talk(source, sink, root)


def digest_of(package: str) -> str:
    """The version of our code that a folder holds: a hash over its files, names and modes.

    All of it is read each time, which takes some milliseconds: what lacks a file, or has a bit
    that is not ours, would end in a traceback anywhere later.
    """
    digest = hashlib.sha256()
    places = (os.path.join(at, name) for at, _, names in os.walk(package) for name in names)
    for name, place in sorted((place[len(package) + 1 :], place) for place in places):
        if "__pycache__" in name.split(os.sep):
            continue
        try:
            with open(place, "rb") as file:
                content, mode = file.read(), os.fstat(file.fileno()).st_mode
        except OSError:
            return ""
        mode = 0o755 if mode & 0o100 else 0o644
        digest.update(f"{name}\0{mode}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:20]


def _lack(home: str) -> str:
    """Says if inodes are missing, and not room: the system has one word for both."""
    while not os.path.isdir(home):
        home = os.path.dirname(home)
    found = os.statvfs(home)
    return " (no inodes are left)" if found.f_files and not found.f_favail else ""


def _say(sink: BinaryIO, **words: Any) -> None:
    sink.write(b"\n" + MARK + json.dumps(words).encode() + b"\n")
    sink.flush()


def _unpack(data: bytes, root: str) -> None:
    """Make `root` of a tar.gz in one step; another process may do the same meanwhile."""
    import io
    import shutil
    import tarfile
    import tempfile

    home = os.path.dirname(os.path.dirname(os.path.dirname(root)))
    os.makedirs(home, 0o700, exist_ok=True)  # what is of its user is no one else's
    os.makedirs(os.path.dirname(root), exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(root))
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(temporary)
        os.chmod(temporary, 0o755)
        whole = digest_of(os.path.join(root, "shanty")) == os.path.basename(root)
        if os.path.isdir(root) and not whole:  # what runs from it has most of it in memory
            damaged = f"{temporary}-damaged"
            os.rename(root, damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        os.rename(temporary, root)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not os.path.isdir(root):
            raise
