"""Places a workspace on this host; `trees.py` says how workspaces lie here.

The client sends the list of all files, hears which contents are missing, and sends these. What
the new tree shares with those that are here is taken from them: large files become hard links,
small ones copies, so that a script that rewrites a file of its own in place changes no other
run's code.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
)

from shanty.runtime import rundir
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.rpc.trees import (
    KEPT,
    File,
    Placed,
    at,
    contents,
    intact,
    is_unchanged,
    mark,
    names,
    numbered,
    prune,
    raw,
    root_folder,
    sweep,
)

_LINK_FROM = 1 << 20  # bytes; smaller files are copied
_PIECE = 1 << 20
Say = Callable[[Mapping[str, Any]], None]


# ------------------------------------------------------------------------------- verbs


def tree_has(ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """`hash user`: whether the tree is here and as it was; marks it as `user`'s (RUN.INDEX)."""
    root = root_folder()
    for name in names(root, ask["hash"]):
        if intact(root / name) is not None:
            mark(root / name, ask.get("user", ""))
            return {"have": True, "path": str(root / name / "tree")}
    return {"have": False, "path": ""}


def tree_missing(ask: Mapping[str, Any], data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """`hash user` and the manifest, deflated: begins a tree; which files' contents are to be sent.

    They are numbers of files in the manifest, and their contents are expected in that order.
    """
    manifest = zlib.decompress(data.read())
    if hashlib.sha256(manifest).hexdigest()[: len(ask["hash"])] != ask["hash"]:
        raise ShantyError("a workspace's list of files does not match its hash")
    root = root_folder()
    with rundir.storage_errors(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(root)
        assembly = _Assembly(root, ask["hash"], ask.get("user", ""), json.loads(manifest))
    _assemblies[assembly.token] = assembly
    return {"token": assembly.token, "missing": assembly.missing}


def tree_part(ask: Mapping[str, Any], data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """`token packed`: the next bytes of the missing contents, one after the other."""
    assembly = _assemblies[ask["token"]]
    with _given_up_on_error(assembly):
        if ask["packed"]:
            assembly.feed(zlib.decompress(data.read()))
        else:
            for piece in iter(lambda: data.read(_PIECE), b""):
                assembly.feed(piece)
    return {}


def tree_place(ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """`token [keep]`: all contents are there; puts the tree in its place, and prunes others."""
    assembly = _assemblies[ask["token"]]
    with _given_up_on_error(assembly):
        path = assembly.place()
    del _assemblies[ask["token"]]
    prune(int(ask.get("keep", KEPT)))
    return {"path": str(path)}


# ------------------------------------------------------------------------ making a tree


class _Assembly:
    """A tree that is being made."""

    def __init__(self, root: Path, name: str, user: str, manifest: Mapping[str, Any]) -> None:
        self.token = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._root = root
        self._name = name
        self._user = user
        self._files = [File(p, bool(x), int(s), d) for p, x, s, d in manifest["files"]]
        self._links = [(str(path), str(target)) for path, target in manifest["links"]]
        for path in [file.path for file in self._files] + [path for path, _ in self._links]:
            if path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
                raise ShantyError(f"a workspace cannot have a file {path!r}")
        self.folder = root / f"{name}.tmp-{self.token}"
        self._tree = self.folder / "tree"
        self._linked: Dict[int, Placed] = {}  # what is another tree's file as well
        self._twins: Dict[int, int] = {}  # files with the content of an earlier one
        self.missing: List[int] = []
        self._make_folders()
        self._take_from_others()
        self._next = 0  # in `missing`
        self._open: Optional[BinaryIO] = None
        self._hash = hashlib.sha256()
        self._left = 0

    def _make_folders(self) -> None:
        self._tree.mkdir(parents=True)
        paths = [file.path for file in self._files] + [path for path, _ in self._links]
        folders = {path.rpartition("/")[0] for path in paths} - {""}
        for folder in sorted(folders):
            os.makedirs(at(self._tree, folder), exist_ok=True)

    def _take_from_others(self) -> None:
        here = contents(self._root, {file.digest for file in self._files})
        first: Dict[str, int] = {}
        for number, file in enumerate(self._files):
            if file.digest in first:
                self._twins[number] = first[file.digest]
            elif not any(self._take(number, *place) for place in here.get(file.digest, ())):
                first[file.digest] = number
                self.missing.append(number)

    def _take(self, number: int, source: bytes, placed: Placed) -> bool:
        """Take over a file of another tree; False when it is not what it was."""
        wanted = self._files[number]
        target = at(self._tree, wanted.path)
        if not is_unchanged(source, placed):
            return False
        if wanted.size >= _LINK_FROM and wanted.executable == placed.file.executable:
            with contextlib.suppress(OSError):  # too many links, or none at all
                os.link(source, target)
                self._linked[number] = placed._replace(file=wanted)
                return True
        shutil.copyfile(source, target)
        if not is_unchanged(source, placed):  # while it was copied
            os.unlink(target)
            return False
        _set_mode(target, wanted.executable)
        return True

    def feed(self, data: bytes) -> None:
        """Write the next bytes of the missing contents; each is checked at its end."""
        os.utime(self.folder)  # nobody takes it for left behind
        view = memoryview(data)
        while True:
            if self._open is None and not self._begin():
                break
            now = view[: self._left]
            if self._open is None or (self._left and not now):
                return
            self._open.write(now)
            self._hash.update(now)
            self._left -= len(now)
            view = view[len(now) :]
            if not self._left:
                self._end()
        if view:
            raise ShantyError("more of a workspace was sent than was missing")

    def _begin(self) -> bool:
        if self._next == len(self.missing):
            return False
        file = self._files[self.missing[self._next]]
        self._open = open(at(self._tree, file.path), "xb")  # noqa: SIM115
        self._hash = hashlib.sha256()
        self._left = file.size
        return True

    def _end(self) -> None:
        assert self._open is not None
        self._open.close()
        self._open = None
        file = self._files[self.missing[self._next]]
        if self._hash.hexdigest() != file.digest:
            raise PrepareError(
                f"{file.path} was changed while it was sent",
                "so what would run is not what was there when the run was started",
                "wait until nothing writes it, or name it in .shantyignore; then run again",
            )
        _set_mode(at(self._tree, file.path), file.executable)
        self._next += 1

    def place(self) -> Path:
        """Complete the tree and put it in its place; the path of its files."""
        self.feed(b"")  # empty files at the end
        if self._open is not None or self._next < len(self.missing):
            raise ShantyError("a workspace was sent in part only")
        for number, original in self._twins.items():
            target = at(self._tree, self._files[number].path)
            shutil.copyfile(at(self._tree, self._files[original].path), target)
            _set_mode(target, self._files[number].executable)
        for path, link in self._links:
            os.symlink(raw(link), at(self._tree, path))
        placed = [self._linked.get(n) or self._state(f) for n, f in enumerate(self._files)]
        record = {
            "files": [[*entry.file, entry.modified, entry.inode] for entry in placed],
            "links": self._links,
        }
        (self.folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
        mark(self.folder, self._user)
        for number in range(1, 1000):
            target_folder = self._root / numbered(self._name, number)
            try:
                os.rename(self.folder, target_folder)
            except OSError:
                if not target_folder.is_dir():
                    raise
                if intact(target_folder) is None:
                    continue  # a run has changed it, and may be at work in it
                mark(target_folder, self._user)  # somebody else was quicker
                self.give_up()
            return target_folder / "tree"
        raise ShantyError(f"every copy of the workspace {self._name} here has been changed")

    def _state(self, file: File) -> Placed:
        status = os.lstat(at(self._tree, file.path))
        return Placed(file, status.st_mtime_ns, status.st_ino)

    def give_up(self) -> None:
        """Leave nothing of it."""
        if self._open is not None:
            self._open.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_assemblies: Dict[str, _Assembly] = {}  # this server's, by token


@atexit.register
def _leave_nothing() -> None:
    """The client has gone in the middle of sending."""
    for assembly in _assemblies.values():
        assembly.give_up()


@contextlib.contextmanager
def _given_up_on_error(assembly: _Assembly) -> Iterator[None]:
    complete = False
    try:
        with rundir.storage_errors(assembly.folder):
            yield
        complete = True
    finally:
        if not complete:
            assembly.give_up()
            _assemblies.pop(assembly.token, None)


def _set_mode(path: bytes, executable: bool) -> None:
    os.chmod(path, 0o755 if executable else 0o644)
