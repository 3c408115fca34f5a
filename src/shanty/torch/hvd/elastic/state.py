"""What a training loop keeps, commits and goes back to: plain Python objects, or one's own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

from shanty.torch.hvd.elastic.commits import Store

Broadcast = Callable[[Any], Any]
"""Takes rank 0's object, and returns it, on every rank."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """The hosts of the job have changed. `skip_sync`: the state need not be broadcast for that.

    Nothing in shanty raises it, since the ranks of a run stay the same; a script's own call of
    `State.on_hosts_updated` makes the next commit do so.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class State:
    """A state that is the same on all ranks; subclasses say what it consists of.

    bcast_object: takes rank 0's object and returns it on every rank. get_rank: this rank.
    A subclass whose commits are to outlive the run has `kept` and `take_up`, too.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._reset_callbacks: list[Callable[[], object]] = []
        self._commits = 0
        self._store: Store | None = None  # while `run` runs, on rank 0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Have these called, in their order, whenever training begins anew."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `run` after Horovod was started anew."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Have the next commit raise HostsUpdatedInterrupt. All ranks have to be told.

        update_res: 1 hosts were removed, 2 added; after a removal alone no broadcast is needed.
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
        """Raises HostsUpdatedInterrupt if `on_hosts_updated` was called since it was last asked."""
        changes = 0
        while not self._host_messages.empty():
            changes |= self._host_messages.get()[1]
        if changes:
            raise HostsUpdatedInterrupt(skip_sync=changes == 1)

    def save(self) -> None:
        """Copy the state, in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was copied last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over rank 0's state, on every rank."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called before the callbacks when training begins anew; nothing by default."""

    def kept(self) -> Any:
        """What was copied last, as one object that torch.save can write; None: nothing to keep."""
        return None

    def take_up(self, kept: Any) -> None:
        """Make an object that `kept` returned, maybe in an earlier process, the state and its copy.

        Raises ValueError, KeyError, TypeError or RuntimeError when it does not fit.
        """
        raise ValueError(f"{type(self).__name__} cannot take up a state")


class ObjectState(State):
    """Plain Python objects, each an attribute by its name, as in ObjectState(…, epoch=0).

    bcast_object, get_rank: as of State. What is kept is the object itself: one that is changed
    in place is not copied by a commit.
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
        """The attributes that were kept last, by their names."""
        return dict(self._saved_state)

    def take_up(self, kept: Any) -> None:
        """Set the attributes to those of an earlier process; KeyError where others were kept."""
        self._saved_state = {name: kept[name] for name in self._saved_state}
        self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)
