"""Prefect tasks on N ranks, with their lines in Prefect's logs: `@task(ranks=4, on="lab")`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from uuid import UUID

import httpx
import prefect
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort, MissingContextError, ObjectNotFound
from prefect.logging import get_logger, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from shanty.client.runs import LogLine, Run
from shanty.integrations import workflows as on_ranks

if TYPE_CHECKING:
    from shanty.tasks.task import Task

__all__ = ["call", "task"]

P = ParamSpec("P")
R = TypeVar("R")
_ASK = 5.0  # seconds between two questions to Prefect whether the flow run was cancelled


@overload
def task(function: Callable[P, R], /, **options: Any) -> prefect.Task[P, R]: ...
@overload
def task(
    *, ranks: int | None = None, on: str | None = None, **options: Any
) -> Callable[[Callable[P, R]], prefect.Task[P, R]]: ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a Prefect task that runs on ranks.

    Options that `prefect.task` has are Prefect's: name, retries, cache_policy, … All others are
    those of `shanty.task`, but for the two names that both have: for shanty's `retries` and `name`
    decorate a `shanty.task`. The value is what rank 0 returns; what a rank raises is raised.
    """
    if function is None:
        return lambda each: task(each, **options)
    theirs, ours = on_ranks.divided(options, prefect.task)
    calling: Any = on_ranks.on_ranks(function, ours, call)
    # Prefect's cache keys are then made of the function's code, not of the one around it.
    calling.__prefect_task_source__ = calling.__wrapped__
    return prefect.task(calling, **theirs)


def call(task: Task[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Call a `shanty.task` in a Prefect task or flow: its lines go to the logger of that.

    The run is stopped when the flow run is cancelled. Raises what a rank raises.
    """
    with get_client(sync_client=True) as client:
        return on_ranks.call(task, args, kwargs, _View(client))


class _View:
    """Shows a run to Prefect, and ends it when Prefect wants that."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._logger = _logger()
        self._run: Run | None = None
        self._flow_run = flow_run.get_id()
        self._asked = time.monotonic()
        self._over = False

    def __call__(self, run: Run, lines: Sequence[LogLine]) -> None:
        """Log the lines; raises, once, when the flow is over: last lines come after that.

        CancelledError where it was broken off, which Prefect takes for a crash of the task; Abort
        where it was cancelled, which leaves the flow run's state as it is.
        """
        if run is not self._run:
            self._run = run
            self._begin(run)
        for line in lines:
            self._logger.info("%s", on_ranks.shown(line))
        if self._over:
            return
        if _is_left():
            self._over = True
            raise asyncio.CancelledError(f"the flow was broken off, and so run {run.id}")
        if self._is_cancelled():
            self._over = True
            self._cancel_task()
            raise Abort(f"the flow run was cancelled, and so run {run.id}")

    def _begin(self, run: Run) -> None:
        self._logger.info("%s", on_ranks.introduction(run))
        if self._flow_run is None and TaskRunContext.get() is None:
            return
        text = f"Run `{run.id}`\n\n    shanty logs -f {run.id}\n    shanty stop {run.id}\n"
        try:
            create_markdown_artifact(
                text, key="shanty-run", description=on_ranks.introduction(run), _sync=True
            )
        except httpx.HTTPError as error:
            self._logger.warning("Prefect did not take the artifact of run %s: %s", run.id, error)

    def _is_cancelled(self) -> bool:
        """Return whether the flow run was cancelled.

        Only who has an infrastructure that ends it gets a signal then.
        """
        if self._flow_run is None or time.monotonic() < self._asked + _ASK:
            return False
        self._asked = time.monotonic()
        with contextlib.suppress(httpx.HTTPError):  # the next time, then
            state = self._client.read_flow_run(UUID(self._flow_run)).state
            return bool(state and state.is_cancelled())
        return False

    def _cancel_task(self) -> None:
        own = TaskRunContext.get()
        if own is not None:
            with contextlib.suppress(httpx.HTTPError, ObjectNotFound):
                self._client.set_task_run_state(own.task_run.id, Cancelled(), force=True)


def _is_left() -> bool:
    """Return whether the flow has been broken off while this task of it is on in a thread.

    The main thread gets the signal, and then waits for its threads, which it tells by an event.
    """
    flow, own = FlowRunContext.get(), TaskRunContext.get()
    if flow is None or own is None or flow.flow_run is None:
        return False
    event = getattr(flow.task_runner, "_cancel_events", {}).get(own.task_run.id)
    state = flow.flow_run.state
    # At a flow's regular end, too, it is set, and tasks that nobody waits for go on.
    return bool(event and event.is_set() and not (state and state.is_final()))


def _logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    try:
        found: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()
    except MissingContextError:  # the function of a task by itself: train.fn(0.1)
        found = get_logger("shanty")
    return found
