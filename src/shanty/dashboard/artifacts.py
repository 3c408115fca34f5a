"""Opens what a run has saved, and nothing else: no path and no link leads out of its folder.

Each part of a path is opened in the folder before it, without following links. So a run that
changes its files meanwhile cannot lead out of them either.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from shanty.client.plain import text
from shanty.dashboard.errors import Refused
from shanty.dashboard.models import Artifact, Artifacts, Preview

TEXT = 256 << 10  # bytes of a preview
ROWS = 200
_COLUMNS, _CELL = 200, 500
_MOST_ENTRIES = 5000
_LONGEST = 4096
IMAGES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
    ".webp": "image/webp",
}  # fmt: skip
_TABLES = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".ndjson": ""}
_TEXTS = {
    ".txt", ".log", ".md", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".py", ".sh", ".xml",
    ".html", ".js", ".css", ".rst", ".out", ".err", ".conf", ".c", ".h", ".cpp", ".rs", ".go",
    ".tex", ".svg", ".diff", ".patch", "",
}  # fmt: skip
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for the other end of a FIFO.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_SUCH = "file not found among the artifacts of the run"

Kind = Literal["text", "image", "table"]


def parts_of(path: str) -> list[str]:
    """Return the parts of a path as it was asked for; 404 for a path that may lead elsewhere."""
    if len(path) > _LONGEST or "\0" in path or path.startswith("/") or "\\" in path:
        raise Refused(404, _NO_SUCH)
    parts = [part for part in path.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise Refused(404, _NO_SUCH)
    return parts


@contextlib.contextmanager
def _opened(folder: Path, parts: list[str], flags: int) -> Iterator[int]:
    """Open what lies there; 404 where it is a link, or there is none."""
    at = -1
    try:
        at = os.open(folder, _FOLDER)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            inner = os.open(part, flags if last else _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        yield at
    except (OSError, ValueError):  # a name of odd letters
        raise Refused(404, _NO_SUCH, "", "links are not followed") from None
    finally:
        if at >= 0:
            os.close(at)


def entries(folder: Path, path: str) -> Artifacts:
    """List a folder: files and folders, but no links, pipes or devices."""
    parts = parts_of(path)
    if not parts and not folder.is_dir():
        return Artifacts(path="", entries=[])
    found: list[Artifact] = []
    with _opened(folder, parts, _FOLDER) as at, os.scandir(at) as listed:
        for entry in itertools.islice(listed, _MOST_ENTRIES):
            with contextlib.suppress(OSError):
                one = _entry(entry)
                if one is not None:
                    found.append(one)
    found.sort(key=lambda each: (each.kind == "file", each.name))
    return Artifacts(path="/".join(parts), entries=found)


def _entry(entry: os.DirEntry[str]) -> Artifact | None:
    known = entry.stat(follow_symlinks=False)
    kind: Literal["file", "folder"]
    if stat.S_ISDIR(known.st_mode):
        kind = "folder"
    elif stat.S_ISREG(known.st_mode):
        kind = "file"
    else:
        return None
    return Artifact(
        name=text(entry.name),
        kind=kind,
        size=known.st_size if kind == "file" else 0,
        modified=known.st_mtime,
        preview=kind_of(entry.name) if kind == "file" else None,
    )


def kind_of(name: str) -> Kind | None:
    """Return how a file of that name is shown; None where it is not."""
    suffix = PurePosixPath(name.lower()).suffix
    if suffix in IMAGES:
        return "image"
    if suffix in _TABLES:
        return "table"
    return "text" if suffix in _TEXTS else None


@contextlib.contextmanager
def opened_file(folder: Path, path: str) -> Iterator[tuple[int, int]]:
    """Open a file to read; gives its descriptor and size. 404 for anything but a plain file."""
    parts = parts_of(path)
    if not parts:
        raise Refused(404, _NO_SUCH)
    with _opened(folder, parts, _FILE) as at:
        known = os.fstat(at)
        if not stat.S_ISREG(known.st_mode):
            raise Refused(404, _NO_SUCH, "it is not a plain file")
        yield at, known.st_size


def preview(folder: Path, path: str, offset: int) -> Preview:
    """Return a part of a file to look at; of an image only its kind, for it is fetched by itself.

    422 for a file that is neither.
    """
    kind = kind_of(path)
    with opened_file(folder, path) as (file, size):
        if kind == "image":
            return Preview(kind="image", size=size)
        data = os.pread(file, TEXT, min(offset, size))
    if kind is None and b"\0" in data:
        raise Refused(422, "this file cannot be shown", "it is not text", "download it")
    end = offset + len(data)
    if kind == "table":
        return _table(path, data, offset, size)
    cut = data.rfind(b"\n") + 1
    if end < size and cut:
        data, end = data[:cut], offset + cut
    shown = data.decode("utf-8", "replace")
    return Preview(kind="text", size=size, text=shown, next=end if end < size else None)


def _table(path: str, data: bytes, offset: int, size: int) -> Preview:
    """Return the rows of whole lines in `data`; the first line of the file names the columns."""
    whole = offset + len(data) >= size
    cut = len(data) if whole else data.rfind(b"\n") + 1
    separator = _TABLES[PurePosixPath(path.lower()).suffix]
    lines = data[: cut or len(data)].splitlines(keepends=True)
    if not separator:
        return _json_lines(lines, offset, size)
    taken = lines[: ROWS + (offset == 0)]
    whole_text = b"".join(taken).decode("utf-8", "replace").replace("\0", "")
    try:
        read = csv.reader(io.StringIO(whole_text, newline=""), delimiter=separator)
        rows = [[cell[:_CELL] for cell in row[:_COLUMNS]] for row in read]
    except csv.Error:
        return Preview(kind="text", size=size, text=whole_text)
    columns = rows.pop(0) if offset == 0 and rows else None
    end = offset + sum(map(len, taken))
    return Preview(
        kind="table", size=size, columns=columns, rows=rows, next=end if end < size else None
    )


def _json_lines(lines: list[bytes], offset: int, size: int) -> Preview:
    records: list[dict[str, object]] = []
    end = offset
    for line in lines[:ROWS]:
        end += len(line)
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        records.append(value if isinstance(value, dict) else {"": value})
    columns = list(dict.fromkeys(key for record in records for key in record))[:_COLUMNS]
    rows = [[_cell(record.get(key, "")) for key in columns] for record in records]
    return Preview(
        kind="table", size=size, columns=[text(name)[:_CELL] for name in columns], rows=rows,
        next=end if end < size else None,
    )  # fmt: skip


def _cell(value: object) -> str:
    return text(value if isinstance(value, str) else json.dumps(value))[:_CELL]
