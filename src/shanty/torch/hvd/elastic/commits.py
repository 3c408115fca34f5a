"""Commits on disk: a training that was broken off goes on from the last one when it is run again.

One file for a call of `run`, written by rank 0, named by a hash over the folder, the script, its
arguments, the function and how many calls of `run` there were before: the same command finds it.
It is removed when the training has ended well. SHANTY_COMMITS is the folder of such files, by
default `commits` in shanty's home; SHANTY_RESUME=0 starts afresh.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from shanty.runtime.rundir import home

FOLDER, RESUME = "SHANTY_COMMITS", "SHANTY_RESUME"
_JOB = "SHANTY_JOB"  # set by a run: stands for its name and the folder in which it was started
_SHORT = 0.05  # seconds; a commit that is written so fast costs nothing worth saving
_SHARE = 10  # of the time, writing takes no more than one part in so many
_calls: Counter[str] = Counter()


def say(text: str) -> None:
    """Tell the user, on standard error."""
    print(f"shanty: {text}", file=sys.stderr, flush=True)


def command_key(name: str) -> str:
    """What tells this command, and in it the next call of `run` for the function `name`."""
    here = Path.cwd()
    script = os.path.relpath(sys.argv[0] or ".", here)
    place = os.environ.get(_JOB) or str(here)
    said = json.dumps([place, script, sys.argv[1:], name, _calls[name]])
    _calls[name] += 1
    return hashlib.sha256(said.encode(errors="replace")).hexdigest()[:16]


class Store:
    """The commit of one call of `run`. All of it is rank 0's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None
        self._next = 0.0  # when the next one may be written
        self._held = self._hold()
        self._writes = self._held

    def _hold(self) -> bool:
        """Take the file for this process, as long as it lives; False where that cannot be."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = self.path.with_suffix(".lock").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("the same training is under way already: this one's commits stay in memory")
            return False
        except OSError as error:
            say(f"commits stay in memory: {error}")
            return False
        return True

    def resume(self, take_up: Callable[[Any], None]) -> None:
        """Give what an earlier run has left to `take_up`; RuntimeError where it does not fit."""
        if not self._held:
            return
        if os.environ.get(RESUME) == "0":
            self.path.unlink(missing_ok=True)
            return
        if not self.path.exists():
            return
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.path.stat().st_mtime))
        try:
            take_up(torch.load(self.path, map_location="cpu", weights_only=False))
        except Exception as error:
            raise RuntimeError(
                f"the commit of {at} in {self.path} cannot be taken up "
                f"({type(error).__name__}: {error}). SHANTY_RESUME=0 starts afresh, without it."
            ) from error
        say(f"goes on from the commit of {at}, {self.path}; SHANTY_RESUME=0 starts afresh")

    def write(self, kept: Any) -> None:
        """Replace the file by `kept` in one step, unless that would take too much of the time.

        What cannot be written is told once, and training goes on.
        """
        began = time.monotonic()
        if not self._writes or began < self._next:
            return
        if kept is None:
            self._writes = False
            say("commits stay in memory: this state does not say what it consists of")
            return
        temporary = self.path.with_suffix(".new")
        try:
            with temporary.open("wb") as file:
                torch.save(kept, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except Exception as error:  # noqa: BLE001  pickle raises whatever an object does
            self._writes = False
            with contextlib.suppress(OSError):
                temporary.unlink()
            say(f"commits stay in memory from now on: {type(error).__name__}: {error}")
        took = time.monotonic() - began
        self._next = began + took * _SHARE if took > _SHORT else 0.0

    def remove(self) -> None:
        """The training has ended well: nothing is to be left of it."""
        if self._held:
            for suffix in (".pt", ".new", ".lock"):
                self.path.with_suffix(suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Give the file free; what it holds stays."""
        self._held = self._writes = False
        if self._lock is not None:
            self._lock.close()


def store(name: str) -> Store:
    """The commit of the next call of `run` for the function `name`, in this command."""
    given = os.environ.get(FOLDER)
    folder = Path(given).expanduser().absolute() if given else home(os.environ) / "commits"
    return Store(folder / f"{command_key(name)}.pt")
