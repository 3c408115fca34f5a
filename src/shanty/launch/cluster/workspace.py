"""The user's code, by the hash of its content: what is in it, and how it gets to the hosts.

A host that has a tree with that hash is asked for nothing else. Otherwise it gets the list of
files and says whose contents it lacks; these are sent, deflated where that helps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shanty.launch.cluster.ignore import IGNORE_FILE, listing
from shanty.launch.cluster.mpi_provision import Progress, Step, side_by_side
from shanty.runtime import rundir
from shanty.runtime.errors import PrepareError
from shanty.runtime.rundir import read_json, write_json

if TYPE_CHECKING:
    from shanty.launch.cluster.rpc_client import RpcClient

LARGE_SIZE = 2 << 30  # bytes, and
LARGE_COUNT = 50_000  # files, from which a workspace is probably not meant to be one
_HASH = 40  # hexadecimal digits; they are part of every path in a traceback
_BLOCK = 8 << 20  # bytes of content in one request; a request of these is held in memory
_SAMPLE = 64 << 10
_TAKES_LONG = 200 << 20  # bytes to read
_RECENT = 2_000_000_000  # ns: a file that was just changed may change again at the same time
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class File:
    """A file of a workspace: `path` relative with "/", `size` in bytes, `digest` its sha256."""

    path: str
    executable: bool
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is in a workspace; links are (path, target) and stay what they are.

    `notes` are sentences for the user.
    """

    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    def encoded(self) -> bytes:
        """The list in the form that is hashed and sent."""
        value = {
            "files": [[f.path, int(f.executable), f.size, f.digest] for f in self.files],
            "links": self.links,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @property
    def hash(self) -> str:
        """The name of this content."""
        return hashlib.sha256(self.encoded()).hexdigest()[:_HASH]


@dataclass(frozen=True, slots=True)
class Placed:
    """A workspace on a host: where, and how many bytes it took to get it there."""

    path: str
    bytes_sent: int


class ChangedError(PrepareError):
    """A file was changed while its content was read."""


def cache_file(folder: Path, home: Path) -> Path:
    """Where the hashes of the files in `folder` are kept."""
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return home / "cache" / "hashes" / f"{name}.json"


def manifest(folder: Path, cache: Path | None = None, say: Say | None = None) -> Manifest:
    """What is in `folder`. Hashes of files that have not changed are taken from `cache`.

    `say` hears the notes at once, before what may take long. Raises PrepareError.
    """
    found = listing(folder)
    notes = list(found.notes)
    statuses: dict[str, os.stat_result] = {}
    links = []
    own = rundir.home(os.environ)
    inside = f"{own.relative_to(folder)}{os.sep}" if own.is_relative_to(folder) else None
    for path in sorted(found.paths, key=os.fsencode):
        if inside is not None and path.startswith(inside):
            continue  # what shanty keeps here is no code, and changes with every run
        try:
            status = os.lstat(folder / path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # git still knows it
        if stat.S_ISREG(status.st_mode):
            statuses[path] = status
        elif stat.S_ISLNK(status.st_mode):
            links.append((path, os.fspath((folder / path).readlink())))
            notes += _link_notes(folder, *links[-1])
        elif stat.S_ISDIR(status.st_mode):
            notes.append(f"the submodule {path} is not checked out, so it is not sent")
        else:
            notes.append(f"{path} is no file, so it is not sent")
    notes += _size_notes(folder, {path: status.st_size for path, status in statuses.items()})
    if say is not None:
        for note in notes:
            say(note)
    digests = _digests(folder, statuses, cache, say)
    files = tuple(
        File(_portable(path), bool(status.st_mode & 0o100), status.st_size, digests[path])
        for path, status in statuses.items()
    )
    portable = tuple((_portable(path), _portable(target)) for path, target in links)
    return Manifest(files, portable, tuple(notes))


def _portable(path: str) -> str:
    """A path in UTF-8 (other bytes as surrogates), whatever the locale here is."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _local(path: str) -> str:
    return os.fsdecode(path.encode("utf-8", "surrogateescape"))


def _link_notes(folder: Path, path: str, target: str) -> list[str]:
    root = os.path.realpath(folder)
    inside = os.path.normpath(Path(root, path).parent / target)
    if inside == root or inside.startswith(root + os.sep):
        return []
    return [f"{path} is a link to {target}, outside the workspace: it is sent as a link"]


def _size_notes(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    total = sum(sizes.values())
    if total <= LARGE_SIZE and len(sizes) <= LARGE_COUNT:
        return []
    bytes_in: Counter[str] = Counter()
    files_in: Counter[str] = Counter()
    for path, size in sizes.items():
        top = path.partition("/")[0] + "/" if "/" in path else path
        bytes_in[top] += size
        files_in[top] += 1
    measure = bytes_in if total > LARGE_SIZE else files_in
    largest = [
        f"{name} ({files_in[name]} files, {_amount(bytes_in[name])})"
        for name, _ in measure.most_common(3)
    ]
    return [
        f"the workspace {folder} is large: {len(sizes)} files, {_amount(total)}. Most is in "
        f"{', '.join(largest)}; what the run does not need can be named in {IGNORE_FILE}"
    ]


def _amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


# -------------------------------------------------------------------------- hashing


def _digests(
    folder: Path,
    statuses: Mapping[str, os.stat_result],
    cache: Path | None,
    say: Say | None,
) -> dict[str, str]:
    known = (read_json(cache) if cache else None) or {}
    digests, states, todo = {}, {}, []
    for path, status in statuses.items():
        state = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
        states[path] = state
        entry = known.get(path)
        if entry is not None and entry[0] == state:
            digests[path] = entry[1]
        else:
            todo.append(path)
    if todo:
        fresh, started = set(todo), time.time_ns()
        if say is not None and sum(statuses[path].st_size for path in todo) > _TAKES_LONG:
            say(f"reading {len(todo)} files of the workspace")
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            results = pool.map(partial(_digest, folder), todo, [statuses[p] for p in todo])
            digests.update(zip(todo, results, strict=True))
        kept = {
            path: [states[path], digest]
            for path, digest in digests.items()
            if path not in fresh or max(states[path][1::2]) < started - _RECENT
        }
        if cache is not None:
            with contextlib.suppress(OSError):  # the next time takes longer, and that is all
                cache.parent.mkdir(parents=True, exist_ok=True)
                write_json(cache, kept)
    return digests


def _digest(folder: Path, path: str, before: os.stat_result) -> str:
    try:
        with (folder / path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
    except PermissionError as error:
        raise PrepareError(
            f"{folder / path} cannot be read",
            "so the workspace cannot be sent",
            f"make it readable, or name it in {IGNORE_FILE}",
        ) from error
    except FileNotFoundError:
        raise _changed(folder / path) from None
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise _changed(folder / path)
    return digest


def _changed(path: Path) -> ChangedError:
    return ChangedError(
        f"{path} was changed while the workspace was read",
        "the ranks would run what was never there as a whole",
        f"wait until nothing writes it, or name it in {IGNORE_FILE}; then run again",
    )


# -------------------------------------------------------------------------- sending


def place(
    clients: Sequence[RpcClient],
    folder: Path,
    progress: Progress,
    *,
    cache: Path | None = None,
    users: Mapping[str, str] | None = None,
    say: Say | None = None,
) -> tuple[Manifest, dict[str, Placed]]:
    """Put the workspace in `folder` on all hosts, side by side; where it is, by the host's name.

    `users` gives, by the host's name, the name (RUN.INDEX) of the work folder for as long as
    which the host keeps the tree. All hosts get the same content: a file that is changed
    meanwhile makes it start again once; then it is an error. Raises PrepareError.
    """
    failure: ChangedError | None = None
    for _ in range(2):
        try:
            content = manifest(folder, cache, say)
        except ChangedError as error:
            failure = error
            continue
        outcomes = _send_all(clients, content, folder, users or {}, progress)
        placed = {name: one for name, one in outcomes.items() if isinstance(one, Placed)}
        if len(placed) == len(outcomes):
            return content, placed
        failure = next(one for one in outcomes.values() if isinstance(one, ChangedError))
    assert failure is not None
    raise failure


def _send_all(
    clients: Sequence[RpcClient],
    content: Manifest,
    folder: Path,
    users: Mapping[str, str],
    progress: Progress,
) -> dict[str, Placed | ChangedError]:
    def work(client: RpcClient) -> Placed | ChangedError:
        try:
            return send(client, content, folder, users.get(client.host.name, ""), progress)
        except ChangedError as error:
            return error

    return side_by_side(clients, work)


def send(
    client: RpcClient,
    content: Manifest,
    folder: Path,
    user: str = "",
    progress: Progress | None = None,
) -> Placed:
    """Put the files of `content`, which are in `folder`, on one host.

    ChangedError when they are not what `content` says any more.
    """
    before = client.bytes_sent
    name = content.hash
    has = client.ask("tree-has", hash=name, user=user).values
    if not has["have"]:
        packed = zlib.compress(content.encoded(), 6)
        asked = client.ask("tree-missing", data=packed, hash=name, user=user).values
        missing = [content.files[number] for number in asked["missing"]]
        what = "the workspace" if len(missing) != 1 else f"the workspace ({missing[0].path})"
        step = Step(client.host.name, what, 0, sum(file.size for file in missing))
        for block in _blocks(_contents(folder, missing)):
            if progress is not None:
                progress(step)
            squeezed = _squeezed(block)
            data = block if squeezed is None else squeezed
            args = {"token": asked["token"], "packed": squeezed is not None}
            client.ask("tree-part", data=data, **args)
            step = replace(step, done=step.done + len(block))
        if progress is not None:
            progress(step)
        has = client.ask("tree-place", token=asked["token"]).values
    return Placed(has["path"], client.bytes_sent - before)


def _contents(folder: Path, files: Sequence[File]) -> Iterator[bytes]:
    """The contents of the files, in pieces; ChangedError when one is not what it was."""
    for entry in files:
        path, digest, left = folder / _local(entry.path), hashlib.sha256(), entry.size
        try:
            with path.open("rb") as file:
                while left:
                    piece = file.read(min(left, _BLOCK))
                    if not piece:
                        raise _changed(path)
                    digest.update(piece)
                    left -= len(piece)
                    if not left and digest.hexdigest() != entry.digest:
                        raise _changed(path)
                    yield piece
        except FileNotFoundError:
            raise _changed(path) from None


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of about `_BLOCK`."""
    gathered, size = [], 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            yield b"".join(gathered)
            gathered, size = [], 0
    if size:
        yield b"".join(gathered)


def _squeezed(block: bytes) -> bytes | None:
    """The block deflated; None where that does not make it much smaller."""
    sample = block[:_SAMPLE]
    if len(zlib.compress(sample, 1)) > 0.9 * len(sample):
        return None
    return zlib.compress(block, 1)
