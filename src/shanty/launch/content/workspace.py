"""The user's code: lists its files, names it by the hash of their content, sends it to hosts.

In a git work tree the files are those that are tracked, including submodules, and those that are
neither tracked nor ignored. Elsewhere they are all files except those that tools can make again.
`.shantyignore` (the syntax of .gitignore, in any folder) excludes more in both cases.

A host that already has a tree with that hash needs nothing else. Otherwise it gets the list of
files and answers which contents it lacks; these are sent, compressed if that helps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shanty.launch.transport.parallel import Progress, Say, Step, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime import rundir
from shanty.runtime.counted import counted
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.rpc.workspaces import File
from shanty.runtime.rundir import read_json, write_json

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LARGE_SIZE = 2 << 30  # bytes, and
LARGE_COUNT = 50_000  # files, above which a folder is probably not meant as a workspace
_HASH = 40  # hexadecimal digits; they are part of every path in a traceback
_BLOCK = 8 << 20  # bytes of content in one request, which is held in memory
_SAMPLE = 64 << 10
_TAKES_LONG = 200 << 20  # bytes to read
_RECENT = 2_000_000_000  # ns: a file that was just changed may change again at the same time
IGNORE_FILE = ".shantyignore"
INPUTS = ".shanty/inputs"  # the folder of the run's inputs in the workspace on a host
_GIT_LIMIT = 300  # seconds for git to list a work tree, which may be on a network disk
_CLUTTER = {
    *(".git", ".hg", ".svn", ".shanty", "__pycache__", "node_modules", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".DS_Store"),
}
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")  # in the folder of a Python environment
_GIT_SETTINGS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a workspace; links are (path, target) and are not followed.

    `notes` are sentences for the user. `inputs` is the folder of the files below `INPUTS`.
    """

    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    inputs: Path | None = None

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


class ChangedError(PrepareError):
    """A file was changed while its content was read."""


def cache_file(folder: Path, home: Path) -> Path:
    """The file that keeps the hashes of the files in `folder`."""
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return home / "cache" / "hashes" / f"{name}.json"


def manifest(
    folder: Path,
    cache: Path | None = None,
    say: Say = lambda _text: None,
    inputs: Path | None = None,
) -> Manifest:
    """The content of `folder`. Hashes of files that have not changed are taken from `cache`.

    `say` gets the notes at once, before files are read. The files of `inputs` are added.
    Raises PrepareError.
    """
    paths, notes = listing(folder)
    root = os.path.realpath(folder)
    statuses: dict[str, os.stat_result] = {}
    links = []
    own = rundir.home(os.environ)
    inside = f"{own.relative_to(folder)}{os.sep}" if own.is_relative_to(folder) else None
    for path in sorted(paths, key=os.fsencode):
        if inside is not None and path.startswith(inside):
            continue  # shanty's own files are not code, and change with every run
        try:
            status = os.lstat(folder / path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # git still lists it
        if stat.S_ISREG(status.st_mode):
            statuses[path] = status
        elif stat.S_ISLNK(status.st_mode):
            links.append((path, os.fspath((folder / path).readlink())))
            target = links[-1][1]
            goal = os.path.normpath(Path(root, path).parent / target)
            if goal != root and not goal.startswith(root + os.sep):
                outside = "outside the workspace: it is sent as a link"
                notes.append(f"{path} is a link to {target}, {outside}")
        elif stat.S_ISDIR(status.st_mode):
            notes.append(f"the submodule {path} is not checked out, so it is not sent")
        else:
            notes.append(f"{path} is not a regular file, so it is not sent")
    notes += _size_notes(folder, {path: status.st_size for path, status in statuses.items()})
    for note in notes:
        say(note)
    digests = _digests(folder, statuses, cache, say)
    files = tuple(
        File(_portable(path), bool(status.st_mode & 0o100), status.st_size, digests[path])
        for path, status in statuses.items()
    )
    portable = tuple((_portable(path), _portable(target)) for path, target in links)
    if inputs is not None:
        files += _input_files(inputs)
    return Manifest(files, portable, tuple(notes), inputs)


def _input_files(folder: Path) -> tuple[File, ...]:
    paths = sorted(
        os.path.relpath(os.path.join(where, name), folder)  # noqa: PTH118
        for where, _, names in os.walk(folder)
        for name in names
    )
    statuses = {path: (folder / path).stat() for path in paths}
    return tuple(
        File(
            f"{INPUTS}/{_portable(path)}",
            bool(status.st_mode & 0o100),
            status.st_size,
            _digest(folder, path, status),
        )
        for path, status in statuses.items()
    )


def _portable(path: str) -> str:
    """A path in UTF-8 (other bytes as surrogates), whatever the locale here is."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


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
        f"{name} ({counted(files_in[name], 'file')}, {_amount(bytes_in[name])})"
        for name, _ in measure.most_common(3)
    ]
    return [
        f"the workspace {folder} is large: {counted(len(sizes), 'file')}, {_amount(total)}. "
        f"Most is in {', '.join(largest)}; list what the run does not need in {IGNORE_FILE}"
    ]


def _amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _digests(
    folder: Path, statuses: Mapping[str, os.stat_result], cache: Path | None, say: Say
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
        if sum(statuses[path].st_size for path in todo) > _TAKES_LONG:
            say(f"reading {counted(len(todo), 'file')} of the workspace")
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            results = pool.map(partial(_digest, folder), todo, [statuses[p] for p in todo])
            digests.update(zip(todo, results, strict=True))
        kept = {
            path: [states[path], digest]
            for path, digest in digests.items()
            if path not in fresh or max(states[path][1::2]) < started - _RECENT
        }
        if cache is not None:
            with contextlib.suppress(OSError):  # then the next time takes longer
                cache.parent.mkdir(parents=True, exist_ok=True)
                write_json(cache, kept)
    return digests


def _digest(folder: Path, path: str, before: os.stat_result) -> str:
    try:
        with (folder / path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
    except PermissionError as error:
        raise _unreadable(str(folder / path)) from error
    except FileNotFoundError:
        raise _changed(folder / path) from None
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise _changed(folder / path)
    return digest


def _changed(path: Path) -> ChangedError:
    return ChangedError(
        f"{path} was changed while the workspace was read",
        "the ranks would get a mixture of two versions",
        f"wait until no program writes to it, or list it in {IGNORE_FILE}; then run again",
    )


def place(
    clients: Sequence[RpcClient],
    folder: Path,
    progress: Progress,
    *,
    cache: Path | None = None,
    users: Mapping[str, str] | None = None,
    say: Say = lambda _text: None,
    inputs: Path | None = None,
) -> tuple[Manifest, dict[str, str]]:
    """Put the workspace in `folder` on all hosts, side by side; its path there, by the host's name.

    `inputs` is a folder that is put into it. `users` gives, by the host's name, the work folder
    (RUN.INDEX) that keeps the tree on the host. All hosts get the same content: if a file changes
    meanwhile, this starts again once; the second time is an error. Raises PrepareError.
    """

    def work(client: RpcClient) -> str | ChangedError:
        try:
            return send(client, content, folder, (users or {}).get(client.host.name, ""), progress)
        except ChangedError as error:
            return error

    for is_last in (False, True):
        try:
            content = manifest(folder, cache, say, inputs)
            outcomes = side_by_side(clients, work)
            placed = {name: one for name, one in outcomes.items() if isinstance(one, str)}
            if len(placed) == len(outcomes):
                return content, placed
            raise next(one for one in outcomes.values() if isinstance(one, ChangedError))
        except ChangedError:
            if is_last:
                raise
    raise AssertionError


def send(
    client: RpcClient,
    content: Manifest,
    folder: Path,
    user: str = "",
    progress: Progress = lambda _step: None,
) -> str:
    """Put the files of `content`, which are in `folder`, on one host; returns their folder there.

    ChangedError if a file no longer matches `content`.
    """
    name = content.hash
    has = client.ask("workspace-has", hash=name, user=user).values
    if not has["have"]:
        packed = zlib.compress(content.encoded(), 6)
        asked = client.ask("workspace-missing", data=packed, hash=name, user=user).values
        missing = [content.files[number] for number in asked["missing"]]
        what = "the workspace" if len(missing) != 1 else f"the workspace ({missing[0].path})"
        step = Step(client.host.name, what, 0, sum(file.size for file in missing))
        for block in _blocks(folder, missing, content.inputs):
            progress(step)
            data, packed_too = _deflated(block)
            client.ask("workspace-part", data=data, packed=packed_too)
            step = replace(step, done=step.done + len(block))
        progress(step)
        has = client.ask("workspace-place").values
    return str(has["path"])


def _blocks(folder: Path, files: Sequence[File], inputs: Path | None) -> Iterator[bytes]:
    """The contents of the files in blocks of about `_BLOCK`; ChangedError when one has changed."""
    gathered, size = [], 0
    for entry in files:
        local = os.fsdecode(entry.path.encode("utf-8", "surrogateescape"))
        path, digest, left = folder / local, hashlib.sha256(), entry.size
        if inputs is not None and local.startswith(f"{INPUTS}/"):
            path = inputs / local.removeprefix(f"{INPUTS}/")
        try:
            with path.open("rb") as file:
                while left:
                    piece = file.read(min(left, _BLOCK))
                    digest.update(piece)
                    left -= len(piece)
                    if not piece or (not left and digest.hexdigest() != entry.digest):
                        raise _changed(path)
                    gathered.append(piece)
                    size += len(piece)
                    if size >= _BLOCK:
                        yield b"".join(gathered)
                        gathered, size = [], 0
        except FileNotFoundError:
            raise _changed(path) from None
    if size:
        yield b"".join(gathered)


def _deflated(block: bytes) -> tuple[bytes, bool]:
    """The block compressed, and True; unchanged if that would not make it much smaller."""
    sample = block[:_SAMPLE]
    if len(zlib.compress(sample, 1)) > 0.9 * len(sample):
        return block, False
    return zlib.compress(block, 1), True


def listing(folder: Path) -> tuple[list[str], list[str]]:
    """The files of the workspace in `folder`, including links, without folders; and notes."""
    paths, notes = _from_git(folder)
    rules = _Rules(folder)
    if not paths:  # git does not list a folder that an outer work tree ignores either
        return list(_walk(folder, "", rules)), notes
    rules.read(path for path in paths if path.rpartition("/")[2] == IGNORE_FILE)
    return [path for path in paths if not rules.ignore(path)], notes


class _Rules:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._patterns: dict[str, GitIgnoreSpec] = {}
        self.read([IGNORE_FILE])  # this one may itself be ignored by git

    def read(self, paths: Iterable[str]) -> None:
        """Read the ignore files among `paths` that exist."""
        for path in paths:
            inside = path.rpartition("/")[0]
            file = self._folder / path
            if inside not in self._patterns and file.is_file():
                from pathspec import GitIgnoreSpec  # few workspaces have such a file

                try:
                    lines = file.read_text(encoding="utf-8-sig").splitlines()
                    self._patterns[inside] = GitIgnoreSpec.from_lines(lines)
                except ValueError as error:
                    what = f"{file} cannot be read"
                    raise UsageError(what, str(error), "see gitignore(5)") from error

    def ignore(self, path: str) -> bool:
        """True when `path` is left out; a folder is given with "/" at its end.

        As with .gitignore, the innermost folder with a pattern that matches decides.
        """
        if not self._patterns:
            return False
        inside = path.rstrip("/")
        while inside:
            inside = inside.rpartition("/")[0]
            patterns = self._patterns.get(inside)
            if patterns is not None:
                verdict = patterns.check_file(path[len(inside) + 1 :] if inside else path).include
                if verdict is not None:  # a pattern of that file matches
                    return verdict
        return False


def _walk(folder: Path, inside: str, rules: _Rules) -> Iterator[str]:
    prefix = f"{inside}/" if inside else ""
    try:
        with os.scandir(folder / inside) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except PermissionError as error:
        raise _unreadable(f"the folder {folder / inside}") from error
    names = {entry.name for entry in found}
    if inside and names.intersection(_ENVIRONMENTS):
        return
    if IGNORE_FILE in names:
        rules.read([prefix + IGNORE_FILE])
    for entry in found:
        path = prefix + entry.name
        if entry.name in _CLUTTER:
            continue
        if entry.is_dir(follow_symlinks=False):
            if not rules.ignore(path + "/"):
                yield from _walk(folder, path, rules)
        elif not rules.ignore(path):
            yield path


def _unreadable(path: str) -> PrepareError:
    what, why = f"{path} cannot be read", "so the workspace cannot be sent"
    return PrepareError(what, why, f"make it readable, or list it in {IGNORE_FILE}")


class _GitError(Exception):
    """An error message of git."""


def _from_git(folder: Path) -> tuple[list[str], list[str]]:
    """The files that git lists; empty if `folder` is not in a work tree, or git fails."""
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return [], []
    try:
        tracked = _git(folder, "--cached", "--recurse-submodules")
        others = _git(folder, "--others", "--exclude-standard")
    except _GitError as error:
        return [], [f"git does not list {folder} ({error}), so all files are taken"]
    notes: list[str] = []
    paths = dict.fromkeys(tracked)
    for path in _without_clutter(others):
        if path.endswith("/"):  # a separate repository that is not a submodule
            nested, more = listing(folder / path)
            notes += more
            paths.update(dict.fromkeys(path + below for below in nested))
        else:
            paths[path] = None
    return list(paths), notes


def _without_clutter(paths: Sequence[str]) -> list[str]:
    environments = {
        path.rpartition("/")[0] + "/" for path in paths if path.endswith("/pyvenv.cfg")
    } | {path.partition("conda-meta/")[0] for path in paths if "/conda-meta/" in path}
    starts = tuple(environments)
    return [
        path
        for path in paths
        if not path.startswith(starts) and not _CLUTTER.intersection(path.split("/"))
    ]


def _git(folder: Path, *options: str) -> list[str]:
    environ = {key: value for key, value in os.environ.items() if key not in _GIT_SETTINGS}
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=off", "ls-files", "-z", *options],
            cwd=folder, env={**environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_GIT_LIMIT, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise _GitError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise _GitError(f"it took more than {_GIT_LIMIT} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _GitError(said[0] if said else f"exit code {done.returncode}")
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]
