"""The workspaces of runs on this host: trees named by the hash of their content.

    ~/.shanty/workspaces/<hash>/tree/          the files
                         <hash>/record.json    the same list, with their state as they were placed
                         <hash>/users/         one file for each run that works in it
                         <hash>-2/ …           the same again: a run has changed a file of <hash>
                         <hash>.tmp-…/         being made, renamed when it is complete

A tree is used again only while every file of it is as it was placed. The client sends the list of
all files, gets a list of the contents that are missing, and sends these. Files that other trees
have already are taken from there: large files become hard links, small files are copied, so that a
script that rewrites a file of its own in place does not change another run's code.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Generator, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from shanty.runtime import rundir, stored_tree
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.rpc import Ask, Data, Say, store

_KEPT = 8  # trees; of those that no run works in, the longest unused go first
_STALE = 86400.0  # seconds: what is still being made was given up; a mark without a run is void
_OWN_FILES_KEPT = 30 * 86400.0  # seconds that a tree with files of a run's own stays
_LOOKING = 2.0  # seconds, where a run has written many
_LINK_FROM = 1 << 20  # bytes; smaller files are copied
_PIECE = 1 << 20


class File(NamedTuple):
    """A file of a manifest: `path` relative, with "/"; `size` in bytes; `digest` its sha256."""

    path: str
    executable: bool
    size: int
    digest: str


class _Placed(NamedTuple):
    """A file as it was when it was placed; all of it must be so for it to count as unchanged."""

    file: File
    modified: int  # nanoseconds
    inode: int


class _Record(NamedTuple):
    files: List[_Placed]
    links: List[Tuple[str, str]]


def root_folder() -> Path:
    """The folder of all workspaces."""
    return rundir.home(os.environ) / "workspaces"


def _raw(path: str) -> bytes:
    """A path of a manifest as the bytes that it is, whatever this host's locale says."""
    return path.encode("utf-8", "surrogateescape")


def _at(tree: Path, path: str) -> bytes:
    return os.path.join(os.fsencode(tree), _raw(path))


def workspace_has(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`hash user`: look for the tree as it was; marks it as `user`'s (RUN.INDEX)."""
    for folder in _trees(root_folder()):
        if folder.name.partition("-")[0] == ask["hash"] and _is_intact(folder):
            _mark(folder, ask.get("user", ""))
            return {"have": True, "path": str(folder / "tree")}
    return {"have": False, "path": ""}


def workspace_missing(ask: Ask, data: Data, _say: Say) -> Dict[str, Any]:
    """`hash user` and the manifest, deflated: begins a tree, and returns which files to send.

    `missing` are numbers of files in the manifest, whose contents are expected in that order.
    """
    global _assembly
    manifest = zlib.decompress(data.read())
    if hashlib.sha256(manifest).hexdigest()[: len(ask["hash"])] != ask["hash"]:
        raise ShantyError("a workspace's list of files does not match its hash")
    _give_up()
    root = root_folder()
    with rundir.storage_errors(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.prune(str(root), _STALE, "*.*")  # what was never completed, or only half removed
        _assembly = _Assembly(root, ask["hash"], ask.get("user", ""), json.loads(manifest))
    return {"missing": _assembly.missing}


def workspace_part(ask: Ask, data: Data, _say: Say) -> Dict[str, Any]:
    """`packed`: the next bytes of the missing contents, one after the other."""
    with _begun() as assembly:
        if ask["packed"]:
            assembly.write(zlib.decompress(data.read()))
        else:
            for piece in iter(lambda: data.read(_PIECE), b""):
                assembly.write(piece)
    return {}


def workspace_place(_ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """All contents are there: puts the tree in its place, and prunes others."""
    global _assembly
    with _begun() as assembly:
        path = assembly.place()
    _assembly = None
    prune(_KEPT)
    return {"path": str(path)}


class _Assembly:
    def __init__(self, root: Path, name: str, user: str, manifest: Mapping[str, Any]) -> None:
        self._root = root
        self._name = name
        self._user = user
        self._files = [File(p, bool(x), int(s), d) for p, x, s, d in manifest["files"]]
        self._links = [(str(path), str(target)) for path, target in manifest["links"]]
        paths = [file.path for file in self._files] + [path for path, _ in self._links]
        for path in paths:
            if path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
                raise ShantyError(f"a workspace cannot have a file {path!r}")
        self.folder = root / f"{name}.tmp-{os.getpid()}-{os.urandom(4).hex()}"
        self._tree = self.folder / "tree"
        self._linked: Dict[int, _Placed] = {}  # what is another tree's file as well
        self._twins: Dict[int, int] = {}  # files with the content of an earlier one
        self.missing: List[int] = []
        self._tree.mkdir(parents=True)
        for folder in {os.path.dirname(path) for path in paths} - {""}:
            os.makedirs(_at(self._tree, folder), exist_ok=True)
        self._take_from_others()
        self._complete = False
        self._sink = self._fill()
        next(self._sink)

    def _take_from_others(self) -> None:
        here = _contents(self._root, {file.digest for file in self._files})
        first: Dict[str, int] = {}
        for number, file in enumerate(self._files):
            if file.digest in first:
                self._twins[number] = first[file.digest]
            elif not any(self._take(number, *place) for place in here.get(file.digest, ())):
                first[file.digest] = number
                self.missing.append(number)

    def _take(self, number: int, source: bytes, placed: _Placed) -> bool:
        """Take over a file of another tree; False when it is not what it was."""
        wanted = self._files[number]
        target = _at(self._tree, wanted.path)
        if not _is_unchanged(source, placed):
            return False
        if wanted.size >= _LINK_FROM and wanted.executable == placed.file.executable:
            with contextlib.suppress(OSError):  # too many links, or none at all
                os.link(source, target)
                self._linked[number] = placed._replace(file=wanted)
                return True
        shutil.copyfile(source, target)
        if not _is_unchanged(source, placed):  # while it was copied
            os.unlink(target)
            return False
        _set_mode(target, wanted.executable)
        return True

    def write(self, data: bytes) -> None:
        os.utime(self.folder)  # so that it does not count as left behind
        self._sink.send(data)

    def _fill(self) -> Generator[None, bytes, None]:
        """Write the missing contents as they are sent; each is checked at its end."""
        rest = memoryview(b"")
        for number in self.missing:
            file = self._files[number]
            path, digest, left = _at(self._tree, file.path), hashlib.sha256(), file.size
            with open(path, "xb") as target:
                while left:
                    if not rest:
                        rest = memoryview((yield))
                    piece, rest = rest[:left], rest[left:]
                    target.write(piece)
                    digest.update(piece)
                    left -= len(piece)
            if digest.hexdigest() != file.digest:
                raise PrepareError(
                    f"{file.path} was changed while it was sent",
                    "so what would run is not what was there when the run was started",
                    "wait until nothing writes it, or name it in .shantyignore; then run again",
                )
            _set_mode(path, file.executable)
        self._complete = True
        while not rest:
            rest = memoryview((yield))
        raise ShantyError("more of a workspace was sent than was missing")

    def place(self) -> Path:
        """Complete the tree and put it in its place; the path of its files."""
        if not self._complete:
            raise ShantyError("a workspace was sent in part only")
        for number, original in self._twins.items():
            target = _at(self._tree, self._files[number].path)
            shutil.copyfile(_at(self._tree, self._files[original].path), target)
            _set_mode(target, self._files[number].executable)
        for path, link in self._links:
            os.symlink(_raw(link), _at(self._tree, path))
        placed = []
        for number, file in enumerate(self._files):
            status = os.lstat(_at(self._tree, file.path))
            fresh = _Placed(file, status.st_mtime_ns, status.st_ino)
            placed.append(self._linked.get(number, fresh))
        record = {
            "files": [[*entry.file, entry.modified, entry.inode] for entry in placed],
            "links": self._links,
        }
        (self.folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
        _mark(self.folder, self._user)
        for number in range(1, 1000):
            target_folder = self._root / (self._name if number == 1 else f"{self._name}-{number}")
            try:
                os.rename(self.folder, target_folder)
            except OSError:
                if not target_folder.is_dir():
                    raise
                if not _is_intact(target_folder):
                    continue  # a run has changed it, and may be at work in it
                _mark(target_folder, self._user)  # another client was quicker
                self.give_up()
            return target_folder / "tree"
        raise ShantyError(f"every copy of the workspace {self._name} here has been changed")

    def give_up(self) -> None:
        self._sink.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_assembly: Optional[_Assembly] = None  # this server's; its client sends one after the other


@atexit.register
def _give_up() -> None:
    global _assembly
    if _assembly is not None:
        _assembly.give_up()
        _assembly = None


@contextlib.contextmanager
def _begun() -> Iterator[_Assembly]:
    """The tree that is being made; on any error it is given up."""
    if _assembly is None:
        raise ShantyError("no workspace is being sent")
    complete = False
    try:
        with rundir.storage_errors(_assembly.folder):
            yield _assembly
        complete = True
    finally:
        if not complete:
            _give_up()


def _set_mode(path: bytes, executable: bool) -> None:
    os.chmod(path, 0o755 if executable else 0o644)


def _trees(root: Path) -> List[Path]:
    """The folders of all trees, the most recently used first."""
    found = []
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if "." not in entry.name:
                with contextlib.suppress(OSError):
                    found.append((entry.stat().st_mtime, entry.path))
    return [Path(path) for _, path in sorted(found, reverse=True)]


def _read_record(folder: Path) -> Optional[_Record]:
    """The content of a tree, as it was placed; None where that is not written."""
    value = rundir.read_json(folder / "record.json")
    if value is None:
        return None
    files = [_Placed(File(p, x, s, d), m, i) for p, x, s, d, m, i in value["files"]]
    return _Record(files, [(path, target) for path, target in value["links"]])


def _is_unchanged(path: bytes, placed: _Placed) -> bool:
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


def _is_intact(folder: Path) -> bool:
    record = _read_record(folder)
    if record is None:
        return False
    tree = folder / "tree"
    try:
        return all(_is_unchanged(_at(tree, one.file.path), one) for one in record.files) and all(
            os.readlink(_at(tree, path)) == _raw(target) for path, target in record.links
        )
    except OSError:
        return False


def _contents(root: Path, wanted: Set[str]) -> Dict[str, List[Tuple[bytes, _Placed]]]:
    """The places where files with those digests should be, in all trees."""
    found: Dict[str, List[Tuple[bytes, _Placed]]] = {}
    for folder in _trees(root):
        record = _read_record(folder)
        for entry in record.files if record else ():
            if entry.file.digest in wanted:
                place = (_at(folder / "tree", entry.file.path), entry)
                found.setdefault(entry.file.digest, []).append(place)
    return found


def _mark(folder: Path, user: str) -> None:
    """Note that the tree is used now, and by `user` for as long as it has a work folder."""
    if user and user.replace("-", "").replace(".", "").isalnum():
        with contextlib.suppress(OSError):
            (folder / "users").mkdir(exist_ok=True)
            (folder / "users" / user).touch()
    with contextlib.suppress(OSError):
        os.utime(folder)


def prune(keep: int) -> None:
    """Remove the longest unused trees beyond `keep`, but none that a run is using."""
    for folder in _trees(root_folder())[keep:]:
        if not (_in_use(folder) or _holds_files_of_a_run(folder)):
            stored_tree.remove(str(folder))


def _in_use(folder: Path) -> bool:
    home = rundir.home(os.environ)
    work = home / "work"
    with contextlib.suppress(OSError), os.scandir(folder / "users") as entries:
        for entry in entries:
            if _is_on(home / "runs" / entry.name.rpartition(".")[0]):
                return True  # submitted from this very host, to a queue
            if (work / entry.name).is_dir() or entry.stat().st_mtime > time.time() - _STALE:
                return True
    return False


def _is_on(run: Path) -> bool:
    status = rundir.read_json(run / "status.json")
    return status is not None and status.get("ended") is None


def _holds_files_of_a_run(folder: Path) -> bool:
    """True where a run has written files of its own beside ours, not too long ago."""
    if folder.stat().st_mtime < time.time() - _OWN_FILES_KEPT:
        return False
    return next(_files_of_runs(folder), None) is not None


def _files_of_runs(folder: Path) -> Iterator[str]:
    """The paths of the files that runs have written beside ours."""
    record = _read_record(folder)
    if record is None:
        return
    ours = {_raw(entry.file.path) for entry in record.files} | {_raw(p) for p, _ in record.links}
    tree = os.fsencode(folder / "tree")
    for place, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name != b"__pycache__"]
        for name in sorted(files):
            path = os.path.relpath(os.path.join(place, name), tree)
            if path not in ours:
                yield os.fsdecode(path)


def written_since(workdir: str, since: float) -> List[str]:
    """The files beside ours that were written into a run's workspace since then, some at least."""
    try:
        name = Path(workdir).relative_to(root_folder()).parts[0]
    except (ValueError, IndexError):
        return []  # a folder that all hosts have
    folder, until = root_folder() / name, time.monotonic() + _LOOKING
    found = []
    for path in _files_of_runs(folder):
        with contextlib.suppress(OSError):
            if os.stat(_at(folder / "tree", path)).st_mtime >= since:
                found.append(path)
        if time.monotonic() > until:
            break
    return sorted(found)
