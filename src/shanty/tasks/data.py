"""Folders and files among arguments and results: their content is sent, not their path.

While a call or a result is pickled, each `Folder` puts its content beside the pickle, under the
hash of the content. Reading the pickle gives a `Folder` again, with its path on that machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from shanty.runtime.rundir import make_removable

_place: ContextVar[Path | None] = ContextVar("_place", default=None)
_PIECE = 1 << 20
_EMPTY = hashlib.sha256().hexdigest()[:40]  # the `content_hash` of a folder without files


class Folder(os.PathLike[str]):
    """A folder, or a file, by its content: as an argument of a task it is there in each rank.

    path: on this machine; or a URL as fsspec reads it (`s3://…`, `https://…`), which each rank
    fetches. In the ranks, and of a result, `path` is where the content is. Raises FileNotFoundError
    for a path that does not exist. What is fetched from a URL is removed with this object, what a
    task has returned is removed with its run: copy what should stay.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._url = ""
        text = os.fspath(path)
        if "://" in text:
            self._url = text
            self._path: Path | None = None
        else:
            self._path = Path(text).expanduser().absolute()
            if self._path.name == "..":  # it goes by its name
                self._path = self._path.resolve()
            if not self._path.exists():
                raise FileNotFoundError(f"no such file or folder: {self._path}")

    @property
    def path(self) -> Path:
        """Where it is on this machine; of a URL a copy, which is fetched by the first use."""
        if self._path is None:
            self._path = _fetched(self._url)
            weakref.finalize(self, shutil.rmtree, self._path.parent, ignore_errors=True)
        return self._path

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __repr__(self) -> str:
        return f"Folder({self._url or str(self._path)!r})"

    def __reduce__(self) -> Any:
        if self._url:
            return Folder, (self._url,)
        place = _place.get()
        if place is None:
            return Folder, (str(self.path),)
        digest = _put(self.path, place)
        return _found, (f"{digest}/{self.path.name}",)


def _put(path: Path, place: Path) -> str:
    """Copy a file or folder to a place named by the hash of the copy; return the hash.

    Another process may still be writing into it, and other ranks may copy the same.
    """
    import tempfile

    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        copy = Path(folder, path.name)
        try:
            if path.is_dir():
                shutil.copytree(path, copy)
                make_removable(copy)
            else:
                shutil.copy2(path, copy)
        except shutil.Error as error:  # its message has the errors of all files
            raise OSError(f"{path} cannot be sent: {error.args[0][0][2]}") from None
        digest = content_hash(copy)
        goal = place / digest / path.name
        goal.parent.mkdir(exist_ok=True)
        try:
            copy.rename(goal)
        except OSError:
            if not goal.exists():
                raise
    return digest


def _found(name: str) -> Folder:
    place = _place.get()
    if place is None:
        raise ValueError("this folder belongs to a call or a result, and was read without it")
    if name.partition("/")[0] == _EMPTY:  # hosts are sent files only
        (place / name).mkdir(parents=True, exist_ok=True)
    return Folder(place / name)


@contextmanager
def packed(place: Path) -> Iterator[None]:
    """Keep the content of folders that are pickled, or read, in this block in `place`."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def content_hash(path: Path) -> str:
    """Return the hash of a file or of all files of a folder, their names and contents."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    for file in files:
        name = b"" if file == path else os.fsencode(file.relative_to(path).as_posix())
        digest.update(b"%d %b %d\n" % (len(name), name, file.stat().st_size))
        with file.open("rb") as content:
            while piece := content.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()[:40]


def _fetched(url: str) -> Path:
    """Fetch what a URL names into a folder of its own."""
    import tempfile

    try:
        import fsspec  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f"reading {url} needs fsspec: pip install fsspec") from error
    system, place = fsspec.core.url_to_fs(url)
    folder = Path(tempfile.mkdtemp(prefix="shanty-"))
    goal = folder / Path(place.rstrip("/")).name
    try:
        system.get(place, str(goal), recursive=system.isdir(place))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return goal
