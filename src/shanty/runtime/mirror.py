"""Copies a run's files to another machine while they grow.

They go from a worker agent to the controller, and from there to the command line.

A change is `(path, offset, data)`: bytes to be put at that offset of the file, or, with offset
None, the whole of a small file that is replaced in one step. Paths are relative, with "/".
"""

from __future__ import annotations

import contextlib
import glob
import os
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

# A worker agent's files, as the controller sees them; events and status are its own alone.
APPENDED = (
    "logs/rank-*.log",
    "attempts/*/logs/rank-*.log",
    "metrics.jsonl",
    "results/*/cell-*.pickle",
)
REPLACED = ("progress.json", "stacks/rank-*.txt", "attempts/*/stacks/rank-*.txt")
SAVED = ("artifacts", "results")  # folders that are sent at the end, with all that is in them
CHUNK = 128 << 10  # bytes of one change at most


class Change(NamedTuple):
    """A piece of a file; `offset` None: the whole file."""

    path: str
    offset: Optional[int]
    data: bytes


class Mirror:
    """Knows how much of a folder's files the other side has."""

    def __init__(
        self,
        folder: Path,
        appended: Sequence[str] = APPENDED,
        replaced: Sequence[str] = REPLACED,
        offsets: Optional[Dict[str, int]] = None,
    ) -> None:
        self._folder = folder
        self._appended = appended
        self._replaced = replaced
        self._offsets: Dict[str, int] = dict(offsets or {})
        self._cut: Dict[str, int] = {}  # bytes that the other side has and the file no more
        self._seen: Dict[str, Tuple[int, int, int]] = {}

    def changes(self) -> Iterator[Change]:
        """Yields what is new since the last call; taken one by one, the rest comes next time."""
        for path in self._matching(self._appended):
            yield from self._grown(path)
        for path in self._matching(self._replaced):
            yield from self._replacement(path)

    def artifacts(self) -> Iterator[Change]:
        """Yields all that lies under artifacts/ and results/, for the end of a run."""
        for folder, _, names in chain.from_iterable(os.walk(self._folder / top) for top in SAVED):
            for name in sorted(names):
                file = Path(folder, name)
                if file.is_file() and not file.is_symlink():
                    path = file.relative_to(self._folder).as_posix()
                    if file.stat().st_size == 0 and path not in self._offsets:
                        self._offsets[path] = 0
                        yield Change(path, 0, b"")
                    yield from self._grown(path)

    def _matching(self, patterns: Sequence[str]) -> Iterator[str]:
        top = os.path.join(self._folder, "")
        for pattern in patterns:
            for path in sorted(glob.glob(glob.escape(top) + pattern)):
                yield path[len(top) :]

    def _grown(self, path: str) -> Iterator[Change]:
        try:
            file = open(self._folder / path, "rb")  # noqa: SIM115  closed by the with below
        except OSError:
            return
        with file:
            while True:
                offset, cut = self._offsets.get(path, 0), self._cut.get(path, 0)
                if path.endswith(".log") and os.fstat(file.fileno()).st_size < offset - cut:
                    cut = self._cut[path] = offset  # another program has emptied it
                file.seek(offset - cut)
                data = file.read(CHUNK)
                if path.endswith(".jsonl"):  # several hosts' lines come together in one file
                    if len(data) == CHUNK and b"\n" not in data:
                        data += file.readline()
                    data = data[: data.rfind(b"\n") + 1]
                if not data:
                    return
                self._offsets[path] = offset + len(data)
                yield Change(path, offset, data)

    def _replacement(self, path: str) -> Iterator[Change]:
        with contextlib.suppress(OSError):
            status = os.stat(self._folder / path)
            mark = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._seen.get(path) != mark:
                data = (self._folder / path).read_bytes()
                self._seen[path] = mark
                yield Change(path, None, data)


def is_safe(path: str) -> bool:
    """Returns True for a path that stays below the folder that it is relative to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def may_write(path: str, patterns: Sequence[str]) -> bool:
    """Returns True for a file that the other side may write: one below `SAVED`, or of `patterns`.

    The rest is ours alone. What starts the launcher's ssh is there, and which ssh configuration
    leads to the hosts.
    """
    if not is_safe(path):
        return False
    parts = PurePosixPath(path).parts
    if parts[0] in SAVED:
        return len(parts) > 1
    return any(PurePosixPath("/", path).match(f"/{pattern}") for pattern in patterns)


def put(folder: Path, change: Change) -> None:
    """Write a change down below `folder`; writing the same change again has no effect."""
    file = folder / change.path
    file.parent.mkdir(parents=True, exist_ok=True)
    if change.offset is None:
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        temporary.write_bytes(change.data)
        os.replace(temporary, file)
        return
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        view, offset = memoryview(change.data), change.offset
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(fd)
