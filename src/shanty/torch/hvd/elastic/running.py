"""`run`: a training that goes back to its last commit when a collective fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from shanty.torch.hvd import world
from shanty.torch.hvd.elastic import commits
from shanty.torch.hvd.elastic.state import HostsUpdatedInterrupt, State
from shanty.torch.hvd.requests import HorovodInternalError

Result = TypeVar("Result")

_TRIES = 3  # how often a training is begun anew that has not come to another commit


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Make a function that trains, `func(state, …)`, one that survives failures.

    The state is broadcast from rank 0 before it begins. A HorovodInternalError in it takes all
    ranks back to their last commit, and it is called again: at most three times without
    another commit, then the error is raised. And when the same command is run again after a run
    that did not end well, it goes on from the last commit that was written to disk, on
    whatever number of ranks; SHANTY_RESUME=0 starts afresh.
    """
    return run_fn(func, _reset)


def _reset() -> None:
    world.shutdown()
    world.init()


def run_fn(func: Callable[..., Result], reset: Callable[[], object]) -> Callable[..., Result]:
    """As `run`; `reset` ends Horovod and starts it again."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        store = None
        if state._rank() == 0:
            store = commits.store(f"{func.__module__}.{func.__qualname__}")
        state._store = store
        try:
            if store is not None:
                store.resume(state.take_up)
            result = _train(func, state, reset, args, kwargs)
            if store is not None:
                store.remove()
            return result
        finally:
            state._store = None
            if store is not None:
                store.close()

    return wrapper


def _train(
    func: Callable[..., Result],
    state: State,
    reset: Callable[[], object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Result:
    failures, commits_then, skip_sync = 0, 0, False
    while True:
        try:
            if not skip_sync:
                state.sync()
            return func(state, *args, **kwargs)
        except HorovodInternalError as error:
            failures = 1 if state._commits > commits_then else failures + 1
            if failures > _TRIES:
                raise
            commits_then = state._commits
            if state._rank() == 0:
                commits.say(f"training goes back to its last commit: {error}")
            state.restore()
            skip_sync = False
        except HostsUpdatedInterrupt as change:
            skip_sync = change.skip_sync
        reset()
        state.on_reset()
