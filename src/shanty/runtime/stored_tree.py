"""A tree of the store: notes what it is made of, finds damage to it later, and takes it away.

The note is a file in the tree itself: of each other file its size and its SHA-256, of a link those
of its target. What Python compiles is left out: it is made anew by itself.
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
    found = {path: [_size(folder, path), _digest(folder, path)] for path in _files(folder)}
    with open(os.path.join(folder, NAME), "w", encoding="utf-8") as file:
        json.dump(found, file)


def damage(folder: str, *, content: bool = False, until: float = float("inf")) -> List[str]:
    """Return the files of a tree that are gone or have another size; with `content`, all changed.

    Contents are compared until time.monotonic() is `until`. [] for a folder without a note, and
    for one that is not there.
    """
    try:
        with open(os.path.join(folder, NAME), encoding="utf-8") as file:
            noted = dict(json.load(file))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        return [NAME]
    bad = [path for path, (size, _) in noted.items() if _size(folder, path) != size]
    if content and not bad:
        for path, (_, digest) in noted.items():
            if time.monotonic() > until:
                break
            if _digest(folder, path) != digest:
                bad.append(path)
    return bad


def discard(folder: str) -> None:
    """Take a damaged tree away, so that the next run makes it anew."""
    remove(folder)
    store, kind = os.path.split(os.path.dirname(folder))
    if kind == "env":  # it shares files with uv's cache
        remove(os.path.join(store, "uv-cache"))


def remove(path: str) -> bool:
    """Take an item away in one step, so that nobody finds half of it."""
    parent, name = os.path.split(path)
    if os.path.isfile(path) and not os.path.islink(path):
        with contextlib.suppress(OSError):
            os.unlink(path)
        return True
    gone = os.path.join(parent, f".gone-{name.lstrip('.')[:16]}-{os.getpid()}")
    try:
        os.rename(path, gone)
    except OSError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


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
    except OSError:
        return -1


def _digest(folder: str, path: str) -> str:
    place = os.path.join(folder, path)
    digest = hashlib.sha256()
    try:
        if os.path.islink(place):
            digest.update(os.fsencode(os.readlink(place)))
            return digest.hexdigest()
        with open(place, "rb") as file:
            for block in iter(lambda: file.read(_BLOCK), b""):
                digest.update(block)
    except OSError as error:
        return error.strerror or str(error)
    return digest.hexdigest()
