"""Elastic training: a state goes back to its last commit after a failure, or in a later run.

Horovod's elastic API, for the state of any framework. In an elastic run the ranks that are left go
on when others are lost (`survivors`); otherwise they stay the same. None joins while it lasts.

Commits are kept in files, too (`commits`).
"""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shanty.collectives import commits, confirmation, survivors
from shanty.collectives.commits import Copy, Format, Store
from shanty.collectives.commits import say as say
from shanty.collectives.errors import ArgumentError, HorovodInternalError

__all__ = ["Format", "HostsUpdatedInterrupt", "Kept", "ObjectState", "State", "Store", "run_fn"]

Result = TypeVar("Result")

_TRIES = 3  # restarts of a training that has not reached another commit

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
        self._copy: Copy | None = None  # meanwhile, on a rank of another host

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
        elif self._copy is not None:
            self._copy.take()
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
        path = commits.commit_path(f"{func.__module__}.{func.__qualname__}")

        def keep() -> None:
            """Have rank 0, which may be another one after a loss, write the commits."""
            if state._rank() == 0 and state._store is None:
                state._store = Store(path, form)
                commits.heed_warning()

        try:
            commits.gather(path)
            keep()
            if state._store is not None:
                state._store.resume(state.take_up)
            result = _train(func, state, reset, keep, path, args, kwargs)
            if state._store is not None:
                state._store.remove()
            elif state._copy is not None:
                state._copy.remove()
            return result
        except BaseException:
            survivors.leave()
            raise
        finally:
            store, state._store, state._copy = state._store, None, None
            if store is not None:
                store.close()

    return wrapper


def _train(
    func: Callable[..., Result],
    state: State,
    reset: Callable[[], object],
    keep: Callable[[], None],
    path: Path,
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
            state._copy = commits.pair(state._store, path)
            if not skip_sync:
                state.sync()
                survivors.note_state()
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
            why = survivors.left() if lost else failure
            say(f"training goes back to its last commit: {why}")
        keep()
