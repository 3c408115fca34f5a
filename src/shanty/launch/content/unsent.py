"""Explains that a rank on a host lacks a file which is here: it was not sent, and why."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from shanty.launch.content.workspace import IGNORE_FILE, listing
from shanty.runtime.errors import ShantyError

# As Python, and as C and shells put it.
_MISSING = re.compile(
    r"No such file or directory: '([^']+)'|([^\s:'\"]+)['\"]?: No such file or directory"
)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NOT_CODE = ("site-packages", "node_modules", "__pycache__")
_MOST_FOLDERS = 2000  # in which a module is looked for
_GIT_LIMIT = 5.0  # seconds


def explained(folder: Path, lines: Sequence[str], there: Sequence[str]) -> tuple[str, str] | None:
    """Why a file that the last `lines` of a rank miss is not there, and what to do.

    `folder` is the workspace here, `there` are its places on the hosts. None if no such file is
    here.
    """
    for path in _missing(lines):
        inside = _inside(path, [str(folder), *there])
        if inside is None:
            if Path(path).exists():
                what = f"{path} exists on this machine, but hosts receive the workspace only"
                return what, "copy it to the hosts, or put it into the workspace"
            continue
        if not (folder / inside).exists():
            continue
        why = _reason(folder, inside)
        if why:
            what = f"{inside} exists here, but was not sent to the hosts: {why} leaves it out"
            folder_of = inside.rpartition("/")[0] or "FOLDER"
            sends = f"send its folder: --inputs {folder_of}, which ranks find as $SHANTY_INPUTS"
            tracked = f"track it (git add -f {inside}), or " if ".gitignore" in why else ""
            return what, f"{tracked}{sends}"
        if Path(path).is_absolute() and path.startswith(f"{folder}/"):
            what = f"{path} is a path of this machine; the workspace has another one on the hosts"
            return what, f"use the path in the workspace: {inside}"
        what = f"{inside} was sent to the hosts and is missing where the rank looked for it"
        fix = (
            "if the workspace there was removed during the run, run again: it is sent again; else "
            "see whether the script changes its folder (os.chdir)"
        )
        return what, fix
    return _module(folder, lines)


def _module(folder: Path, lines: Sequence[str]) -> tuple[str, str] | None:
    """The same for a module that the ranks do not find."""
    name = next(filter(None, map(_NO_MODULE.search, reversed(lines))), None)
    if name is None:
        return None
    tail = name[1].replace(".", "/")
    for number, (place, folders, _) in enumerate(os.walk(folder)):
        folders[:] = [each for each in folders if each[0] != "." and each not in _NOT_CODE]
        for path in (Path(place, f"{tail}.py"), Path(place, tail)):
            inside = path.relative_to(folder).as_posix()
            why = _reason(folder, inside) if path.exists() else ""
            if why:
                fix = "remove that rule"
                if ".gitignore" in why:
                    fix = f"track it (git add -f {inside}), or change that pattern"
                return (
                    f"{inside} exists here, but was not sent to the hosts: {why} leaves it out",
                    fix,
                )
        if number > _MOST_FOLDERS:
            break
    return None


def _missing(lines: Sequence[str]) -> Iterator[str]:
    for line in reversed(lines):
        for found in _MISSING.finditer(line):
            yield found[1] or found[2]


def _inside(path: str, places: Sequence[str]) -> str | None:
    """The path as the workspace has it; None if it is elsewhere."""
    if not path.startswith("/"):
        return None if path.startswith("..") else path.removeprefix("./")
    place = next((each for each in places if each and path.startswith(f"{each}/")), None)
    return None if place is None else path[len(place) + 1 :]


def _reason(folder: Path, inside: str) -> str:
    """What leaves a file out of the workspace, or all files of a folder; "" if nothing does."""
    try:
        sent, _notes = listing(folder)
    except ShantyError:
        return ""
    if inside in sent or any(path.startswith(f"{inside}/") for path in sent):
        return ""
    try:
        done = subprocess.run(
            ["git", "check-ignore", "-v", "--", inside], cwd=folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=_GIT_LIMIT, check=False,
        )  # fmt: skip
        rule = done.stdout.partition("\t")[0] if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        rule = ""
    if rule:
        file, line, pattern = [*rule.split(":", 2), "", ""][:3]
        return f"the pattern {pattern} in {file}, line {line},"
    ours = (folder / IGNORE_FILE).is_file()
    return IGNORE_FILE if ours else "the rule for what tools can make again (docs: hosts, Code)"
