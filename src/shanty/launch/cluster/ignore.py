"""Which files of a folder belong to a workspace.

In a git work tree: what is tracked, submodules included, and what is neither tracked nor ignored.
Elsewhere all files, but for what tools make and can make again. `.shantyignore` (the syntax of
.gitignore, in any folder) leaves more out in both cases.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shanty.runtime.errors import PrepareError, UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".shantyignore"
_TIME_LIMIT = 300  # seconds for git to list a work tree, which may lie on a network home
_CLUTTER = {
    *(".git", ".hg", ".svn", ".shanty", "__pycache__", "node_modules", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".DS_Store"),
}
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")  # what marks a folder as an environment of Python
_GIT_SETTINGS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


class Listing(NamedTuple):
    """Relative paths with "/", in no order, and what the user should know about them."""

    paths: list[str]
    notes: list[str]


def listing(folder: Path) -> Listing:
    """The files of the workspace in `folder`, symbolic links included, folders not."""
    found = _from_git(folder)
    if found is None or not found.paths:  # a folder that an outer work tree ignores has none
        rules = _Rules(folder)
        notes = found.notes if found else []
        return Listing(list(_walk(folder, "", rules)), notes)
    rules = _Rules(folder)
    rules.read(path for path in found.paths if path.rpartition("/")[2] == IGNORE_FILE)
    return Listing([path for path in found.paths if not rules.ignore(path)], found.notes)


class _Rules:
    """The .shantyignore files of a workspace, by the folder that they are in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._patterns: dict[str, GitIgnoreSpec] = {}
        self.read([IGNORE_FILE])  # this one may itself be ignored by git

    def read(self, paths: Iterable[str]) -> None:
        """Take in those of the ignore files `paths` that are there."""
        for path in paths:
            inside = path.rpartition("/")[0]
            if inside not in self._patterns and (self._folder / path).is_file():
                self._patterns[inside] = _patterns(self._folder / path)

    def ignore(self, path: str) -> bool:
        """True when `path` is left out; a folder is given with "/" at its end.

        As with .gitignore, the patterns in the innermost folder that say anything decide.
        """
        if not self._patterns:
            return False
        inside = path.rstrip("/")
        while inside:
            inside = inside.rpartition("/")[0]
            patterns = self._patterns.get(inside)
            if patterns is not None:
                verdict = patterns.check_file(path[len(inside) + 1 :] if inside else path).include
                if verdict is not None:  # some pattern of that file says something
                    return verdict
        return False


def _patterns(path: Path) -> GitIgnoreSpec:
    # Only the few who have such a file pay for loading this.
    from pathspec import GitIgnoreSpec

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UsageError(f"{path} cannot be read", str(error), "see gitignore(5)") from error


# ------------------------------------------------------------------------ without git


def _walk(folder: Path, inside: str, rules: _Rules) -> Iterator[str]:
    prefix = f"{inside}/" if inside else ""
    try:
        with os.scandir(folder / inside) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except PermissionError as error:
        raise _unreadable(folder, inside) from error
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


def _unreadable(folder: Path, inside: str) -> PrepareError:
    return PrepareError(
        f"the folder {folder / inside} cannot be read",
        "so the workspace cannot be sent",
        f"make it readable, or name it in {IGNORE_FILE}",
    )


# --------------------------------------------------------------------------- with git


def _from_git(folder: Path) -> Listing | None:
    """What git says; None where `folder` is in no work tree, or git is not there."""
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return None
    tracked = _git(folder, "--cached", "--recurse-submodules")
    if isinstance(tracked, str):
        return Listing([], [f"git does not list {folder} ({tracked}), so all files count"])
    others = _git(folder, "--others", "--exclude-standard")
    if isinstance(others, str):
        return Listing([], [f"git does not list {folder} ({others}), so all files count"])
    notes: list[str] = []
    paths = dict.fromkeys(tracked)
    for path in _without_clutter(others):
        if path.endswith("/"):  # a repository of its own, which is no submodule
            nested = listing(folder / path)
            notes += nested.notes
            paths.update(dict.fromkeys(path + below for below in nested.paths))
        else:
            paths[path] = None
    return Listing(list(paths), notes)


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


def _git(folder: Path, *options: str) -> list[str] | str:
    """What `git ls-files` lists below `folder`; git's complaint where it does not."""
    environ = {key: value for key, value in os.environ.items() if key not in _GIT_SETTINGS}
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=off", "ls-files", "-z", *options],
            cwd=folder,
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIME_LIMIT,
            check=False,
        )
    except FileNotFoundError:
        return "git is not installed"
    except subprocess.TimeoutExpired:
        return f"it took more than {_TIME_LIMIT} s"
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return said[0] if said else f"exit code {done.returncode}"
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]
