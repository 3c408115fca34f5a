"""Fixes what the doctor found on a host: the verb `repair`. Each repair reports what it did."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional

from shanty.runtime import platform, stored_tree
from shanty.runtime.authorized_keys import keys_file
from shanty.runtime.cleanup import end_all
from shanty.runtime.errors import StorageError, UsageError
from shanty.runtime.file_edit import edit_file, read_file
from shanty.runtime.rpc import Ask, Data, Say, containers, health, runs, store, workspaces

_SHARED = 0o022  # group and others may write
_BEGUN = 3600.0  # seconds after which a run has begun with what it has placed
_READING = 60.0  # seconds in which contents of the store are compared
BACKUP = ".before-shanty"  # is put behind the name of a file of settings that was changed


def repair(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`what`: one of REPAIRS, and its arguments; `done` describes what was done."""
    work = REPAIRS.get(ask["what"])
    if work is None:
        raise UsageError(f"unknown repair {ask['what']!r}")
    return {"done": work(ask)}


def add_key(ask: Ask) -> List[str]:
    """`key`: add a public key of the user's own permanently, unless it is there already.

    Only a line without options counts: another may admit the key from elsewhere only, or for
    one command, and a comment does not admit it.
    """
    words = str(ask["key"]).split()
    if len(words) < 2 or "\n" in str(ask["key"]).strip():
        raise UsageError(f"not a public key: {str(ask['key'])[:40]}")
    path = keys_file()
    line, plain = " ".join(words).encode(), [word.encode() for word in words[:2]]
    added = False

    def change(content: Optional[bytes]) -> Optional[bytes]:
        nonlocal added
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        old = content or b""
        added = all(each.split()[:2] != plain for each in old.splitlines())
        if not added:
            return content
        return old + (b"" if not old or old.endswith(b"\n") else b"\n") + line + b"\n"

    edit_file(path, change)
    close_home(ask)
    return [f"your key is in {path}" + ("" if added else " already")]


def close_home(_ask: Ask) -> List[str]:
    """Let only the user write in the home, in ~/.ssh and in authorized_keys."""
    home = os.path.expanduser("~")
    done = []
    for path in (home, os.path.join(home, ".ssh"), keys_file()):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(path).st_mode)
            if mode & _SHARED:
                os.chmod(path, mode & ~_SHARED)
                done.append(f"only you may write {path} now")
    return done


def comment_out(ask: Ask) -> List[str]:
    """`settings`, `[[path, name], …]`: make those lines of files below the home into comments.

    The file as it was stays beside it.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    wanted: Dict[str, List[str]] = {}
    for path, name in ask["settings"]:
        if not os.path.realpath(path).startswith(home + os.sep):
            raise UsageError(f"{path} is not in your home", fix="its owner has to change it")
        wanted.setdefault(path, []).append(name)
    done = []
    for path, names in wanted.items():
        before = read_file(os.path.realpath(path))
        if _commented(before, names) == before:
            continue
        kept = _kept(path)
        edit_file(path, partial(_commented, names=names))
        done.append(f"{', '.join(names)} in {path} is a comment now ({kept} has it as it was)")
    return done


def _kept(path: str) -> str:
    """Copy a file to one beside it that is not there yet; its path. StorageError."""
    backup, number = path + BACKUP, 1
    while os.path.lexists(backup):  # of an earlier repair, which is not to be lost
        number += 1
        backup = f"{path}{BACKUP}-{number}"
    try:
        shutil.copy2(path, backup)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(backup)  # half of a copy
        raise StorageError(
            f"{path} was not changed: it cannot be copied to {backup} first",
            error.strerror or str(error),
        ) from error
    return backup


def _commented(content: Optional[bytes], names: List[str]) -> Optional[bytes]:
    if content is None:
        return None
    lines = []
    for line in content.splitlines(keepends=True):
        name = line.partition(b"=")[0].strip().decode(errors="replace")
        lines.append(b"# " + line if name in names else line)
    return b"".join(lines)


def clear_leftovers(_ask: Ask) -> List[str]:
    """Remove the files of this user's dead MPI jobs in /dev/shm and /tmp that are not open."""
    done = []
    for folder, paths in health.paths_left().items():
        gone = [path for path in paths if _removed(path)]
        if gone:
            what = "1 file" if len(gone) == 1 else f"{len(gone)} files"
            done.append(f"{what} of jobs that ended removed from {folder}")
    return done


def _removed(path: str) -> bool:
    with contextlib.suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return True
    return False


def end_orphans(ask: Ask) -> List[str]:
    """End the processes of shanty's runs whose agents are gone, and sweep what those left."""
    crashed = runs.sweep_runs(ask, io.BytesIO(), lambda _said: None)["swept"]
    found = {each["pid"]: each for each in health.orphans() if each["run"]}

    def members() -> List[platform.Process]:
        every = (platform.process(pid) for pid in found)
        return [each for each in every if each is not None]

    end_all(members)
    left = {each.pid for each in members()}
    done = [f"{x['name']} ({pid}) of run {x['run']} ended" for pid, x in found.items()]
    swept = [f"container {name} removed" for name in containers.sweep()]
    ended = [text for text, pid in zip(done, found) if pid not in left]
    return [*(f"removed what run {name} left" for name in crashed), *ended, *swept]


def clear_store(_ask: Ask) -> List[str]:
    """Remove the damaged items of the store, so that the next run sends them again."""
    done = []
    for path, files in store.damaged_items(time.monotonic() + _READING).items():
        if store.discard(path):
            done.append(f"{path} removed, of which {stored_tree.named(files)} were damaged")
    return done


def make_room(ask: Ask) -> List[str]:
    """Remove what shanty keeps here and no run uses: MPIs, environments, wheels, workspaces.

    What is younger than an hour stays: a run may have placed it, and be about to begin.
    """
    before = shutil.disk_usage(store.home()).free
    runs.sweep_runs(ask, io.BytesIO(), lambda _said: None)
    store.store_sweep({"days": _BEGUN / 86400}, io.BytesIO(), lambda _said: None)
    if workspaces.root_folder().is_dir():
        workspaces.prune(0)
    freed = shutil.disk_usage(store.home()).free - before
    return [f"{freed / 1e6:.0f} MB freed in {store.home()}"] if freed > 0 else []


REPAIRS: Mapping[str, Callable[[Ask], List[str]]] = {
    "add-key": add_key,
    "close-home": close_home,
    "comment-out": comment_out,
    "clear-leftovers": clear_leftovers,
    "end-orphans": end_orphans,
    "make-room": make_room,
    "clear-store": clear_store,
}
