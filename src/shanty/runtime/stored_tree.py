"""A tree of the store: notes what it is made of, finds damage to it later, and takes it away.

The note is a file in the tree itself: of each other file its size and its SHA-256, of a link those
of its target. What Python compiles is left out: Python makes it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from typing import Iterator, List, Sequence

NAME = ".manifest"
_BLOCK = 1 << 20
_SHOWN = 3


def note(folder: str) -> None:
    """Note all files of a folder."""
    found = {
        path: [_size(folder, path), digest_of(os.path.join(folder, path))]
        for path in _files(folder)
    }
    with open(os.path.join(folder, NAME), "w", encoding="utf-8") as file:
        json.dump(found, file)


def damage(folder: str, *, content: bool = False, until: float = float("inf")) -> List[str]:
    """Return the files of a tree that are gone or have another size; with `content`, all changed.

    They are checked until time.monotonic() is `until`. A file that cannot be read just now (no
    descriptors, a network file system that is away) is not damaged. [] for a folder that has no
    note or does not exist.
    """
    try:
        with open(os.path.join(folder, NAME), encoding="utf-8") as file:
            noted = json.load(file)
        if isinstance(noted, list):
            return [str(path) for path in noted]  # it was condemned
        entries = [(path, int(size), str(digest)) for path, (size, digest) in noted.items()]
    except OSError:
        return []
    except (ValueError, TypeError, AttributeError):
        return [NAME]
    bad: List[str] = []
    for path, size, _ in entries:
        if time.monotonic() > until:
            return bad
        with contextlib.suppress(OSError):
            if _size(folder, path) != size:
                bad.append(path)
    if content and not bad:
        for path, _, digest in entries:
            with contextlib.suppress(OSError):
                if digest_of(os.path.join(folder, path), until) not in (digest, ""):
                    bad.append(path)
    return bad


def condemn(folder: str, files: Sequence[str]) -> None:
    """Have a tree count as damaged from now on, so that the next run makes it again."""
    with contextlib.suppress(OSError), open(os.path.join(folder, NAME), "w") as file:
        json.dump(list(files), file)


def is_condemned(folder: str) -> bool:
    """Return True where `condemn` has been called; this is faster than to check all files."""
    with contextlib.suppress(OSError), open(os.path.join(folder, NAME), encoding="utf-8") as file:
        return file.read(1) == "["
    return False


def remove(path: str) -> bool:
    """Remove an item in one step, so that no reader finds half of it."""
    if os.path.isfile(path) and not os.path.islink(path):
        with contextlib.suppress(OSError):
            os.unlink(path)
        return True
    gone = _aside(path)
    try:
        os.rename(path, gone)
    except OSError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def replace(path: str, new: str) -> None:
    """Put the folder `new` in the place of the folder `path`."""
    gone = _aside(path)
    os.rename(path, gone)
    os.rename(new, path)
    shutil.rmtree(gone, ignore_errors=True)


def _aside(path: str) -> str:
    parent, name = os.path.split(path)
    return os.path.join(parent, f".gone-{name.lstrip('.')[:16]}-{os.getpid()}")


def named(paths: Sequence[str]) -> str:
    """Say which files: "3 files (lib/a, lib/b, lib/c)"."""
    count = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    more = ", …" if len(paths) > _SHOWN else ""
    return f"{count} ({', '.join(paths[:_SHOWN])}{more})"


def _files(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name != "__pycache__" and name not in links]
        for name in [*names, *links]:
            path = os.path.relpath(os.path.join(place, name), folder)
            if path != NAME:
                yield path


def _size(folder: str, path: str) -> int:
    try:
        return os.lstat(os.path.join(folder, path)).st_size
    except (FileNotFoundError, NotADirectoryError):
        return -1


def digest_of(path: str, until: float = float("inf")) -> str:
    """The SHA-256 of a file, or of a link's target; "" if time ran out."""
    digest = hashlib.sha256()
    if os.path.islink(path):
        digest.update(os.fsencode(os.readlink(path)))
        return digest.hexdigest()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            if time.monotonic() > until:
                return ""
            digest.update(block)
    return digest.hexdigest()
