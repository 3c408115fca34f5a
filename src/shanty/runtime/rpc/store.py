"""Keeps what shanty brings to a host: `~/.shanty/store/<kind>/<hash>/`, each named by its content.

Whatever is placed is made under a name that begins with a dot, in the folder where it will be,
and renamed at the end. So two runs at once, two hosts with one home and a crash midway do no
harm: the name without the dot is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from shanty.runtime import rundir, stored_tree
from shanty.runtime.containers import portable_python
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.mpi import detect
from shanty.runtime.rpc import Ask, Data, Say

# An MPI prefix, uv itself, mpi4py for interpreters that lack it; wheels and environments are
# kept beside them by `environment`, layers of images and image files by `layers`,
# the host's Python for images without one by `containers`, versions of our own
# code by `bootstrap`.
KINDS = ("mpi", "uv", "mpi4py", "wheels", "env", "layers", "images", "portable", "bundle")
_HASH = re.compile(r"[0-9a-f]{16,64}\Z")
_BLOCK = 1 << 20
_UNFINISHED = 86400  # seconds after which something that is still being made was given up


def home() -> str:
    """The folder of this login in which shanty keeps everything."""
    return str(rundir.home(os.environ))


def named_by_runs(path: str) -> bool:
    """True when the plan of a run that still has files on this host speaks of `path`."""
    for plan in glob.glob(os.path.join(glob.escape(home()), "work", "*", "plan.json")):
        with contextlib.suppress(OSError), open(plan, encoding="utf-8", errors="replace") as file:
            if path in file.read():
                return True
    return False


def place_of(kind: str, name: str) -> str:
    """The path of an item of the store, which may not be there."""
    if kind not in KINDS or not _HASH.match(name):
        raise UsageError(f"the store has no place for {kind!r} {name!r}")
    return os.path.join(home(), "store", kind, name)


def mark_used(path: str) -> bool:
    """True when an item of the store is there; from now on it counts as used today."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        return os.path.isdir(path)  # a store that may only be read serves as well
    return True


@contextlib.contextmanager
def placing(target: str) -> Iterator[str]:
    """A new folder that takes the place of `target` when the block ends well, else is gone.

    Where someone else has made the same one meanwhile, theirs stays: it has the same content. One
    that is damaged makes way, which does a run that uses it no harm: its paths stay good.
    """
    parent, name = os.path.split(target)
    with rundir.storage_errors(Path(target)):
        os.makedirs(parent, mode=0o755, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f".{name[:16]}-", dir=parent)
        try:
            os.chmod(folder, 0o755)
            yield folder
            try:
                os.rename(folder, target)
            except OSError:
                if not os.path.isdir(target):
                    raise
                if stored_tree.damage(target):
                    stored_tree.replace(target, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def prune(folder: str, seconds: float, pattern: str = "*") -> None:
    """Remove the items of a folder that have such a name and were not used for so long."""
    with contextlib.suppress(OSError):
        for name in fnmatch.filter(os.listdir(folder), pattern):
            path = os.path.join(folder, name)
            if _age(path) > seconds:
                stored_tree.remove(path)


Entry = Tuple[str, str, str]  # path, "file" | "program" | "link", SHA-256 or the link's target


def tree_hash(entries: Iterable[Entry]) -> str:
    """The name of a tree in the store: a SHA-256 of its paths, modes and contents."""
    digest = hashlib.sha256()
    for entry in sorted(entries):
        digest.update("\0".join(entry).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


class UnsafeError(PrepareError):
    """A member of an archive would land outside of its folder, or is not a file."""


def unpack(archive: tarfile.TarFile, folder: str) -> List[Entry]:
    """Write the members of a tar below `folder`, and nothing elsewhere; UnsafeError.

    Links come last, so that nothing is ever written through one.
    """
    entries: Dict[str, Entry] = {}
    for member in archive:
        path = inside(member.name)
        place = os.path.join(folder, path)
        os.makedirs(place if member.isdir() else os.path.dirname(place), exist_ok=True)
        if path in entries:  # the last one of a name counts
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
        if member.issym():
            inside(os.path.join(os.path.dirname(path), member.linkname))
            entries[path] = (path, "link", member.linkname)
        elif member.isfile():
            program = bool(member.mode & 0o100)
            digest = _write(archive.extractfile(member), place, program)
            entries[path] = (path, "program" if program else "file", digest)
        elif member.islnk():  # the same content under one more name
            same = entries.get(inside(member.linkname))
            if same is None or same[1] == "link":
                raise UnsafeError(f"{member.name} in an archive links to nothing in it")
            try:
                os.link(os.path.join(folder, same[0]), place)
            except OSError:  # a file system without hard links
                shutil.copy2(os.path.join(folder, same[0]), place)
            entries[path] = (path, *same[1:])
        elif not member.isdir():
            raise UnsafeError(f"{member.name} in an archive is neither a file nor a link")
    for path, kind, goal in entries.values():
        if kind == "link":
            os.symlink(goal, os.path.join(folder, path))
    return list(entries.values())


def inside(path: str) -> str:
    """The normal form of a path in an archive; UnsafeError where it leads out of it."""
    normal = os.path.normpath(path)
    if os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir:
        raise UnsafeError(f"{path} in an archive leads out of it")
    return normal


def _write(source: Any, path: str, program: bool) -> str:
    digest = hashlib.sha256()
    with open(path, "xb") as file:
        for block in iter(lambda: source.read(_BLOCK), b""):
            digest.update(block)
            file.write(block)
    os.chmod(path, 0o755 if program else 0o644)
    return digest.hexdigest()


def store_has(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Tell if an item (`kind`, `hash`) is there, where it is or would be, and what runs here.

    One that is damaged is not; `damaged` says which files of it.
    """
    path = place_of(ask["kind"], ask["hash"])
    damaged = stored_tree.damage(path)
    have = mark_used(path) and not damaged
    named = stored_tree.named(damaged) if damaged else ""
    return {"have": have, "path": path, "machine": machine(), "damaged": named}


def discard(path: str) -> bool:
    """Remove a damaged item, so that it is made again; False where a run uses it."""
    if named_by_runs(path) or not stored_tree.remove(path):
        return False
    if os.path.basename(os.path.dirname(path)) == "env":
        discard_cache()
    return True


def discard_cache() -> None:
    """Take away the cache, which shares files with environments, unless one is being made."""
    if not _environment_is_being_made():
        stored_tree.remove(uv_cache())


def _environment_is_being_made() -> bool:
    begun = (path for path in _listing("env") if re.match(r"\.(?!gone-)", os.path.basename(path)))
    return any(os.path.isdir(path) and _age(path) < _UNFINISHED for path in begun)


def damaged_items(until: float) -> Dict[str, List[str]]:
    """The damaged items of this store, and which of their files.

    All are looked at for what is gone, and for what has other contents until time.monotonic() is
    `until`: those that were used last come first.
    """
    paths = [path for kind in KINDS for path in _listing(kind)]
    paths = sorted((each for each in paths if not _is_hidden(each)), key=_age)
    found = {path: stored_tree.damage(path, until=until) for path in paths}
    for path in paths:
        if not found[path]:
            found[path] = stored_tree.damage(path, content=True, until=until)
    return {path: files for path, files in found.items() if files}


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith(".")


def store_put(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Place the compressed tar that follows as (`kind`, `hash`); it has to have that hash."""
    path = place_of(ask["kind"], ask["hash"])
    with placing(path) as folder:
        try:
            with tarfile.open(fileobj=data, mode="r|gz") as archive:  # type: ignore[call-overload]
                found = tree_hash(unpack(archive, folder))
        except (tarfile.TarError, EOFError, ValueError) as error:
            what = "what was sent did not arrive as a whole"
            raise PrepareError(what, str(error), "run the command again") from error
        if found != ask["hash"]:
            raise PrepareError(
                f"the wrong content arrived for {ask['kind']}",
                f"its hash is {found[:12]}, not {ask['hash'][:12]}: a file changed during that",
                "run the command again",
            )
        stored_tree.note(folder)
    return {"path": path}


def file_put(ask: Ask, data: Data, _say: Say) -> Dict[str, Any]:
    """Place the file `name` that follows as (`kind`, `hash`); it has to have that SHA-256."""
    digest, name = ask["hash"], os.path.basename(ask["name"])
    target = place_of(ask["kind"], digest)
    with placing(target) as folder:
        found = _write(data, os.path.join(folder, name), False)
        if found != digest:
            what = f"{name} did not arrive as a whole"
            why = f"its SHA-256 is {found[:12]}, not {digest[:12]}"
            raise PrepareError(what, why, "run the command again")
        stored_tree.note(folder)
    return {"path": os.path.join(target, name)}


def kept_file(kind: str, digest: str, name: str) -> Optional[str]:
    """The path of a file that was placed so; None where it is not there, or damaged."""
    folder = place_of(kind, digest)
    path = os.path.join(folder, os.path.basename(name))
    there = mark_used(folder) and os.path.isfile(path)
    return path if there and not stored_tree.damage(folder) else None


def store_sweep(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Remove what no run has used for `days`, and what was left half made, after one day.

    What a run that is on uses stays in any case.
    """
    days = float(ask["days"]) * 86400
    removed = []
    for kind in KINDS:
        for path in _listing(kind):
            limit = _UNFINISHED if _is_hidden(path) else days
            if _age(path) > limit and not named_by_runs(path) and stored_tree.remove(path):
                removed.append(path)
    cache = uv_cache()
    if _age(os.path.realpath(cache)) > days and not _environment_is_being_made():
        removed += [cache] * stored_tree.remove(cache)
    return {"removed": removed}


def _listing(kind: str) -> List[str]:
    folder = os.path.join(home(), "store", kind)
    with contextlib.suppress(OSError):
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return []


def _age(path: str) -> float:
    with contextlib.suppress(OSError):
        return time.time() - os.lstat(path).st_mtime
    return 0.0


def uv_cache() -> str:
    """The folder of the files that uv keeps for the next environment."""
    return os.path.join(home(), "store", "uv-cache")


def mpi_find(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """The MPI of this host that is `flavour` `version`, best at `launcher`; and all there are.

    `launchers` are programs that would start one, whether its library is there or not.
    """
    found = list(filter(None, [detect.inspect_launcher(ask["launcher"])]))
    own = home()
    everywhere = detect.find_installations(own, os.environ.get("PATH", ""), environ=os.environ)
    found += [one for one in everywhere if one not in found]
    wanted = (ask["flavour"], ask["version"])
    same = [one for one in found if (one.flavour, one.version) == wanted]
    launchers = [ask["launcher"], shutil.which("mpirun"), shutil.which("mpiexec")]
    return {
        "found": asdict(same[0]) if same else None,
        "there": [asdict(one) for one in found],
        "launchers": sorted({path for path in launchers if path and os.access(path, os.X_OK)}),
        "machine": machine(),
    }


def machine() -> Dict[str, str]:
    """The facts that decide which programs run here: system, architecture, C library."""
    system = os.uname()
    libc = ""
    if portable_python.VARIABLE in os.environ:
        libc = portable_python.glibc_of_image()
    else:
        with contextlib.suppress(ValueError, OSError):
            libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition("glibc ")[2]
    return {
        "system": "macOS" if sys.platform == "darwin" else system.sysname,
        "architecture": system.machine,
        "glibc": libc,
    }
