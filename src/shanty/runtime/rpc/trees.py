"""The workspaces of runs on this host: trees named by the hash of what is in them.

    ~/.shanty/workspaces/<hash>/tree/          the files
                         <hash>/record.json    what they are, and their state when they were placed
                         <hash>/users/         one file for each run that works in it
                         <hash>-2/ …           the same again: a run has changed a file of <hash>
                         <hash>.tmp-…/         being made, renamed when it is complete

A tree is used again only while every file of it is as it was placed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from shanty.runtime import rundir

KEPT = 8  # trees; of those that no run works in, the longest unused go first
_STALE = 86400.0  # seconds: what is still being made was given up; a mark without a run is void
_OWN_FILES_KEPT = 30 * 86400.0  # seconds that a tree with files of a run's own stays


class File(NamedTuple):
    """A file of a manifest: `path` relative, with "/"; `size` in bytes; `digest` its sha256."""

    path: str
    executable: bool
    size: int
    digest: str


class Placed(NamedTuple):
    """A file as it was when it was placed; all of it must be so for it to count as unchanged."""

    file: File
    modified: int  # nanoseconds
    inode: int


class Record(NamedTuple):
    """What a tree holds."""

    files: List[Placed]
    links: List[Tuple[str, str]]


def root_folder() -> Path:
    """The folder of all workspaces."""
    return rundir.home(os.environ) / "workspaces"


def raw(path: str) -> bytes:
    """A path of a manifest as the bytes that it is, whatever this host's locale says."""
    return path.encode("utf-8", "surrogateescape")


def at(tree: Path, path: str) -> bytes:
    """Where a path of a manifest is in a tree."""
    return os.path.join(os.fsencode(tree), raw(path))


def numbered(name: str, number: int) -> str:
    """The name of the folder of the first tree with a hash, or of a further one."""
    return name if number == 1 else f"{name}-{number}"


def names(root: Path, name: str) -> List[str]:
    """The folders of the trees with that hash."""
    return [folder.name for folder in trees(root) if folder.name.partition("-")[0] == name]


def trees(root: Path) -> List[Path]:
    """The folders of all trees, the one that was used last first."""
    found = []
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if "." not in entry.name:
                with contextlib.suppress(OSError):
                    found.append((entry.stat().st_mtime, entry.path))
    return [Path(path) for _, path in sorted(found, reverse=True)]


def read_record(folder: Path) -> Optional[Record]:
    """What a tree holds, as it was placed; None where that is not written."""
    value = rundir.read_json(folder / "record.json")
    if value is None:
        return None
    files = [Placed(File(p, x, s, d), m, i) for p, x, s, d, m, i in value["files"]]
    return Record(files, [(path, target) for path, target in value["links"]])


def is_unchanged(path: bytes, placed: Placed) -> bool:
    """True while the file is as it was placed."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == placed.file.size
        and status.st_mtime_ns == placed.modified
        and status.st_ino == placed.inode
        and bool(status.st_mode & 0o100) == placed.file.executable
    )


def intact(folder: Path) -> Optional[Record]:
    """What the tree holds; None when a file of it is not as it was placed."""
    record = read_record(folder)
    if record is None:
        return None
    tree = folder / "tree"
    if not all(is_unchanged(at(tree, entry.file.path), entry) for entry in record.files):
        return None
    for path, target in record.links:
        try:
            if os.readlink(at(tree, path)) != raw(target):
                return None
        except OSError:
            return None
    return record


def contents(root: Path, wanted: Set[str]) -> Dict[str, List[Tuple[bytes, Placed]]]:
    """Where files with those digests should be, in all trees."""
    found: Dict[str, List[Tuple[bytes, Placed]]] = {}
    for folder in trees(root):
        record = read_record(folder)
        for entry in record.files if record else ():
            if entry.file.digest in wanted:
                place = (at(folder / "tree", entry.file.path), entry)
                found.setdefault(entry.file.digest, []).append(place)
    return found


# ------------------------------------------------------------------------- use, pruning


def mark(folder: Path, user: str) -> None:
    """The tree is used now, and by `user` for as long as it has a work folder."""
    if user and user.replace("-", "").replace(".", "").isalnum():
        with contextlib.suppress(OSError):
            (folder / "users").mkdir(exist_ok=True)
            (folder / "users" / user).touch()
    with contextlib.suppress(OSError):
        os.utime(folder)


def prune(keep: int) -> List[Path]:
    """Remove the longest unused trees beyond `keep`, but none that a run is using."""
    root, removed = root_folder(), []
    for folder in trees(root)[keep:]:
        if _in_use(folder) or _holds_files_of_a_run(folder):
            continue
        gone = folder.with_name(f"{folder.name}.gone-{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            os.rename(folder, gone)
            removed.append(folder)
            shutil.rmtree(gone, ignore_errors=True)
    return removed


def _in_use(folder: Path) -> bool:
    work = rundir.home(os.environ) / "work"
    with contextlib.suppress(OSError), os.scandir(folder / "users") as entries:
        for entry in entries:
            if (work / entry.name).is_dir() or entry.stat().st_mtime > time.time() - _STALE:
                return True
    return False


def _holds_files_of_a_run(folder: Path) -> bool:
    """True where a run has written files of its own beside ours, not too long ago."""
    record = read_record(folder)
    if record is None or folder.stat().st_mtime < time.time() - _OWN_FILES_KEPT:
        return False
    ours = {raw(entry.file.path) for entry in record.files} | {raw(p) for p, _ in record.links}
    tree = os.fsencode(folder / "tree")
    for place, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name != b"__pycache__"]
        for name in files:
            if os.path.relpath(os.path.join(place, name), tree) not in ours:
                return True
    return False


def sweep(root: Path) -> None:
    """Remove what was never completed, and what was being removed."""
    for entry in list(os.scandir(root)):
        if "." in entry.name:
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < time.time() - _STALE:
                    shutil.rmtree(entry.path, ignore_errors=True)
