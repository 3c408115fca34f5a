"""Folders that are sent to hosts and kept there in the store, named by their content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from shanty.launch.cluster.parallel import Progress, Step, read_and_report
from shanty.launch.cluster.platforms import refuse_foreign
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc.store import Entry, tree_hash
from shanty.runtime.rundir import read_json, write_json

# What no program that runs needs; headers stay, for an mpicc inside a run.
_LEFT_OUT = re.compile(r"(^|/)(__pycache__|share/(doc|man|info))/|\.(a|la|pyc)$")
_KEPT = 30 * 86400  # seconds
_LEVEL = 6  # of gzip; 9 takes twice as long for nothing
_PACKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Package:
    """A tree that can be sent: its name in the store, its files, and where it runs.

    `files` are paths relative to `root`; `tags` the platform tags of the wheel it came as;
    `archive` is where it is kept as it is sent, so that it is compressed once for all hosts.
    """

    title: str
    hash: str
    root: Path
    files: tuple[str, ...]
    tags: tuple[str, ...]
    archive: Path


def put_tree(client: RpcClient, kind: str, package: Package, progress: Progress) -> str:
    """The package's folder on the host; it is sent when it is not there yet."""
    name = client.host.name
    answer = client.ask("store-has", kind=kind, hash=package.hash).values
    refuse_foreign(package.title, package.tags, answer["machine"], name)
    if answer["have"]:
        return str(answer["path"])
    with _archive(package).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = read_and_report(file, Step(name, package.title, 0, size), progress)
        client.ask("store-put", data=data, size=size, kind=kind, hash=package.hash)
    return str(answer["path"])


def package(title: str, root: Path, files: Sequence[str], home: Path) -> Package:
    """The package of these files; the cache in shanty's `home` knows their hash."""
    name = _cached_hash(root, files, home)
    archive = home / "cache" / "trees" / f"{name}.tar.gz"
    return Package(title, name, root, tuple(files), (), archive)


def recorded(root: Path, info: Path) -> tuple[str, ...]:
    """The files that a wheel installed below `root`, by its record."""
    found = set()
    for line in (info / "RECORD").read_text(encoding="utf-8").splitlines():
        path = line.rsplit(",", 2)[0].strip('"')
        relative = os.path.relpath(os.path.normpath(info.parent / path), root)
        outside = relative.startswith(os.pardir) or _LEFT_OUT.search(relative)
        if not outside and os.path.lexists(root / relative):
            found.add(relative)
    return tuple(sorted(found))


def all_files(root: Path) -> tuple[str, ...]:
    """All files of a folder that are worth sending."""
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    found = (os.path.relpath(path, root) for path in paths)
    return tuple(sorted(path for path in found if not _LEFT_OUT.search(path)))


def _archive(package: Package) -> Path:
    """The package as a compressed tar, made now where it is not kept yet."""
    with _PACKING:
        try:
            os.utime(package.archive)
        except FileNotFoundError:
            folder = package.archive.parent
            folder.mkdir(parents=True, exist_ok=True)
            prune(folder)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
                made = Path(file.name)
                try:
                    pack(package.root, package.files, file.file)
                    if tree_hash(content(package.root, package.files)) != package.hash:
                        what = f"{package.title} was changed while it was packed"
                        why = f"its files are in {package.root}"
                        raise PrepareError(what, why, "run the command again")
                except BaseException:
                    made.unlink()
                    raise
            made.replace(package.archive)
    return package.archive


def prune(folder: Path) -> None:
    """Remove what nobody has used for a month from a folder of shanty's cache."""
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - entry.lstat().st_mtime > _KEPT:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()


def pack(root: Path, files: Iterable[str], sink: BinaryIO | IO[bytes]) -> int:
    """Write the files as a compressed tar; its size in bytes.

    Wheels hold no links, so a library is in them under each of its names: of equal files only
    the first is sent, the others as hard links to it.
    """
    first: dict[tuple[int, bool, bytes], str] = {}
    with tarfile.open(fileobj=sink, mode="w:gz", compresslevel=_LEVEL) as archive:
        for path in files:
            member = archive.gettarinfo(root / path, path)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if not member.isreg():
                archive.addfile(member)
                continue
            with (root / path).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
                same = first.setdefault((member.size, bool(member.mode & 0o100), digest), path)
                if same == path:
                    file.seek(0)
                    archive.addfile(member, file)
                else:
                    member.type, member.linkname, member.size = tarfile.LNKTYPE, same, 0
                    archive.addfile(member)
    return int(sink.tell())


def content(root: Path, files: Iterable[str]) -> Iterator[Entry]:
    """The entries of which `tree_hash` is taken."""
    for path in files:
        place = root / path
        if place.is_symlink():
            yield path, "link", str(place.readlink())
        else:
            with place.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            program = bool(place.stat().st_mode & 0o100)
            yield path, "program" if program else "file", digest


def _cached_hash(root: Path, files: Sequence[str], home: Path) -> str:
    """The tree's hash; the files are read only when one of them is not what it was."""
    digest = hashlib.sha256(str(root).encode())
    for path in files:
        stat = os.lstat(root / path)
        digest.update(f"{path}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_mode}\n".encode())
    return remembered(
        home / "cache" / "trees.json", digest.hexdigest(), lambda: tree_hash(content(root, files))
    )


def remembered(cache: Path, key: str, find: Callable[[], str]) -> str:
    """The cache's value for `key`; else it is found, and kept with the latest hundred."""
    known = {k: v for k, v in (read_json(cache) or {}).items() if isinstance(v, str)}
    if key in known:
        return known[key]
    value = find()
    cache.parent.mkdir(parents=True, exist_ok=True)
    write_json(cache, {**dict(list(known.items())[-99:]), key: value})
    return value
