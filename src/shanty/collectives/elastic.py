"""Elastic training: a state goes back to its last commit after a failure, or in a later run.

Horovod's elastic API, for the state of any framework. In an elastic run the ranks that are left go
on when others are lost (`survivors`); otherwise they stay the same. None joins while it lasts.

Commits are kept on disk, too: one file for a call of `run`, written by rank 0, named by a hash over
the folder, the script, its arguments, the function and how many calls of `run` there were before:
the same command finds it. It is removed when the training has ended well. SHANTY_COMMITS is the
folder of such files, by default `commits` in shanty's home; SHANTY_RESUME=0 starts afresh.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from shanty.collectives import confirmation, survivors
from shanty.collectives.errors import ArgumentError, HorovodInternalError
from shanty.runtime.rundir import home

Result = TypeVar("Result")

_TRIES = 3  # restarts of a training that has not reached another commit
FOLDER, RESUME = "SHANTY_COMMITS", "SHANTY_RESUME"
_JOB = "SHANTY_JOB"  # set by a run: stands for its name and the folder in which it was started
_SHORT = 0.05  # seconds; a commit that is written so fast costs nothing worth saving
_SHARE = 10  # writing takes at most one part in this many of the time
_WARNING = "SHANTY_WARNING"  # the signal with which a queue warns of an end that is near
_calls: Counter[str] = Counter()
_warned: list[int] = []  # then every commit is written


def say(text: str) -> None:
    """Print a message for the user on standard error."""
    print(f"shanty: {text}", file=sys.stderr, flush=True)


def command_key(name: str) -> str:
    """Return a key for this command, and for its next call of `run` with the function `name`."""
    here = Path.cwd()
    script = os.path.relpath(sys.argv[0] or ".", here)
    place = os.environ.get(_JOB) or str(here)
    text = json.dumps([place, script, sys.argv[1:], name, _calls[name]])
    _calls[name] += 1
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def heed_warning() -> None:
    """Handle the queue's warning signal, unless the script handles it."""
    text = os.environ.get(_WARNING, "")
    if not text.isdigit() or threading.current_thread() is not threading.main_thread():
        return
    number = int(text)
    if signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, lambda *_: _warned.append(number))


class Format(NamedTuple):
    """The format of a commit's file: a framework's own. load: of a path; save: to an open file."""

    load: Callable[[Path], Any]
    save: Callable[[Any, BinaryIO], object]


class Store:
    """The commit of one call of `run`. All of it is rank 0's."""

    def __init__(self, path: Path, form: Format) -> None:
        self.path = path
        self._format = form
        self._lock: BinaryIO | None = None
        self._next = 0.0  # when the next one may be written
        self._held = self._hold()
        self._writes = self._held

    def _hold(self) -> bool:
        """Lock the file for as long as this process lives; returns whether that worked."""
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
        """Pass what an earlier run has left to `take_up`; RuntimeError where it does not fit."""
        if not self._held:
            return
        if os.environ.get(RESUME) == "0":
            self.path.unlink(missing_ok=True)
            return
        if not self.path.exists():
            return
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.path.stat().st_mtime))
        try:
            take_up(self._format.load(self.path))
        except Exception as error:
            raise RuntimeError(
                f"the commit of {at} in {self.path} cannot be taken up "
                f"({type(error).__name__}: {error}). SHANTY_RESUME=0 starts afresh, without it."
            ) from error
        say(f"goes on from the commit of {at}, {self.path}; SHANTY_RESUME=0 starts afresh")

    def write(self, kept: Any) -> None:
        """Replace the file by `kept` in one step, unless that would take too much of the time.

        A failure to write is reported once, and training goes on.
        """
        began = time.monotonic()
        if not self._writes or (began < self._next and not _warned):
            return
        if kept is None:
            self._writes = False
            say("commits stay in memory: this kind of state cannot be written to disk")
            return
        temporary = self.path.with_suffix(".new")
        try:
            with temporary.open("wb") as file:
                self._format.save(kept, file)
                file.flush()
                os.fsync(file.fileno())
            confirmation.confirm_place()  # a host that was frozen may find that it is left behind
            temporary.replace(self.path)
        except Exception as error:  # noqa: BLE001  pickle raises whatever an object does
            self._writes = False
            with contextlib.suppress(OSError):
                temporary.unlink()
            say(f"commits stay in memory from now on: {type(error).__name__}: {error}")
        took = time.monotonic() - began
        self._next = began + took * _SHARE if took > _SHORT else 0.0

    def remove(self) -> None:
        """Remove the files, after a training that has ended well."""
        if self._held:
            for suffix in (".pt", ".new", ".lock"):
                self.path.with_suffix(suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the file; its content stays."""
        self._held = self._writes = False
        if self._lock is not None:
            self._lock.close()


def commit_path(name: str) -> Path:
    """Return the file for commits of the next call of `run` for the function `name`."""
    given = os.environ.get(FOLDER)
    folder = Path(given).expanduser().absolute() if given else home(os.environ) / "commits"
    return folder / f"{command_key(name)}.pt"


Broadcast = Callable[[Any], Any]
"""Takes rank 0's object, and returns it, on every rank."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """The hosts of the job have changed. `skip_sync`: the state need not be broadcast for that.

    A commit raises it when lost ranks were started again, or after `State.on_hosts_updated`.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class Kept:
    """The interface of what commits keep."""

    def save(self) -> None:
        """Copy the state, in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was copied last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over rank 0's state, on every rank."""
        raise NotImplementedError


class State(Kept):
    """A state that is the same on all ranks; subclasses say what it consists of.

    bcast_object: takes rank 0's object and returns it on every rank. get_rank: this rank.
    A subclass whose commits are to outlive the run has `kept` and `take_up`, too.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], object]] = []
        self._commits = 0
        self._store: Store | None = None  # while `run` runs, on rank 0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Have these called, in their order, whenever training begins again."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `run` after Horovod was started again."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Have the next commit raise HostsUpdatedInterrupt, on all ranks. Rank 0's call counts.

        timestamp: later than those before, else it is ignored. update_res: 1 hosts were removed, 2
        added; after a removal alone no broadcast is needed.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Keep the state as it is now: a failure, or a later run, goes back to it.

        It is copied in memory, and inside of `run` rank 0 writes it to disk, too. That takes as
        long as writing the whole state: once in some steps will do.
        """
        self.save()
        self._commits += 1
        if self._store is not None:
            self._store.write(self.kept())
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt if `on_hosts_updated` was called since it was last asked.

        In an elastic run that has lost ranks, also when new ones are there in their place. All
        ranks must call it together, since rank 0 tells them.
        """
        before = latest = self._last_updated_timestamp
        changes = 0
        while not self._host_messages.empty():
            timestamp, change = self._host_messages.get()
            if timestamp > latest:
                latest, changes = timestamp, changes | change
        before, latest, changes = self._bcast_object((before, latest, changes))
        self._last_updated_timestamp = latest
        if survivors.see_new_ranks():
            raise HostsUpdatedInterrupt(skip_sync=False)
        if latest > before:
            raise HostsUpdatedInterrupt(skip_sync=changes == 1)

    def reset(self) -> None:
        """Called before the callbacks when training begins again; does nothing by default."""

    def kept(self) -> Any:
        """Return what was copied last, for the format of a file; None: nothing to keep."""
        return None

    def take_up(self, kept: Any) -> None:
        """Make an object that `kept` returned, maybe in an earlier process, the state and its copy.

        Raises ValueError, KeyError, TypeError or RuntimeError when it does not fit.
        """
        raise ValueError(f"{type(self).__name__} cannot take up a state")


class ObjectState(State):
    """Plain Python objects, each an attribute by its name, as in ObjectState(…, epoch=0).

    bcast_object, get_rank: as in State. A commit keeps the object itself, not a copy: changes in
    place are not undone.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int], **kwargs: Any) -> None:
        self._saved_state: dict[str, Any] = kwargs
        self._set_attrs()
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        """Keep the attributes as they are."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Set the attributes to what was kept last."""
        self._set_attrs()

    def sync(self) -> None:
        """Set the attributes to what rank 0 kept last."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs()

    def kept(self) -> Any:
        """Return the attributes that were kept last, by their names."""
        return dict(self._saved_state)

    def take_up(self, kept: Any) -> None:
        """Set the attributes to those of an earlier process; KeyError where others were kept."""
        self._saved_state = {name: kept[name] for name in self._saved_state}
        self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def run_fn(
    func: Callable[..., Result], reset: Callable[[], object], form: Format
) -> Callable[..., Result]:
    """Return `func(state, …)`, which trains, as a function that survives failures.

    reset: ends Horovod and starts it again, and returns true where ranks were lost. form: of the
    file of commits. See a front end's `run`.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        path = commit_path(f"{func.__module__}.{func.__qualname__}")

        def keep() -> None:
            """Have rank 0, which may be another one after a loss, write the commits."""
            if state._rank() == 0 and state._store is None:
                state._store = Store(path, form)
                heed_warning()

        try:
            keep()
            if state._store is not None:
                state._store.resume(state.take_up)
            result = _train(func, state, reset, keep, args, kwargs)
            if state._store is not None:
                state._store.remove()
            return result
        except BaseException:
            survivors.leave()
            raise
        finally:
            store, state._store = state._store, None
            if store is not None:
                store.close()

    return wrapper


def _train(
    func: Callable[..., Result],
    state: State,
    reset: Callable[[], object],
    keep: Callable[[], None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Result:
    failures, commits_then, skip_sync, begins = 0, 0, False, True
    while True:
        failure = ""
        try:
            if not begins:
                state.on_reset()
            begins = False
            if not skip_sync:
                state.sync()
            result = func(state, *args, **kwargs)
            if survivors.all_say(True):
                confirmation.confirm_place()
                survivors.finish()
                return result
            raise HorovodInternalError("another rank lost touch before it was through")
        except ArgumentError:
            raise  # it would be wrong once more
        except HorovodInternalError as error:
            failures = 1 if state._commits > commits_then else failures + 1
            if failures > _TRIES:
                raise
            commits_then = state._commits
            if state._rank() == 0 and not survivors.is_elastic():
                say(f"training goes back to its last commit: {error}")
            state.restore()
            skip_sync, failure = False, str(error)
        except HostsUpdatedInterrupt as change:
            skip_sync = change.skip_sync
            if not skip_sync:
                state.save()  # what rank 0 has saved goes to all
        lost = reset()
        if lost:
            failures, skip_sync = 0, False  # the training is not to blame
        if state._rank() == 0 and survivors.is_elastic() and failure:
            left = survivors.count()
            words = f"{left} ranks are left" if left > 1 else "this rank alone is left"
            why = words if lost else failure
            say(f"training goes back to its last commit: {why}")
        keep()
