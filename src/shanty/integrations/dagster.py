"""Dagster ops and assets on N ranks, their lines in the compute log: `@ranks_asset(ranks=4)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import dagster

from shanty.client.calls import printed
from shanty.client.runs import LogLine, Run
from shanty.integrations import workflows as on_ranks

if TYPE_CHECKING:
    from shanty.tasks.task import Task

__all__ = ["call", "ranks_asset", "ranks_op"]

R = TypeVar("R")
_METADATA = "shanty_run"


@overload
def ranks_op(function: Callable[..., Any], /, **options: Any) -> dagster.OpDefinition: ...
@overload
def ranks_op(
    *, ranks: int | None = None, on: str | None = None, **options: Any
) -> Callable[[Callable[..., Any]], dagster.OpDefinition]: ...


def ranks_op(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a Dagster op that runs on ranks.

    Options that `dagster.op` has are Dagster's: ins, out, retry_policy, … All others are those of
    `shanty.task`, but for `name` and `tags`, which both have: for shanty's decorate a
    `shanty.task`. The value is what rank 0 returns; what a rank raises is raised. The function
    has no `context`, which cannot travel: see `call`.
    """
    return _decorated(dagster.op, ranks_op, function, options)


@overload
def ranks_asset(function: Callable[..., Any], /, **options: Any) -> dagster.AssetsDefinition: ...
@overload
def ranks_asset(
    *, ranks: int | None = None, on: str | None = None, **options: Any
) -> Callable[[Callable[..., Any]], dagster.AssetsDefinition]: ...


def ranks_asset(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a Dagster asset that is made on ranks; options are as for `ranks_op`."""
    return _decorated(dagster.asset, ranks_asset, function, options)


def call(task: Task[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Call a `shanty.task` in an op or asset of one's own, which may have a `context`.

    Its lines are printed, so Dagster has them in the compute log; the id of the run is
    `shanty_run` in the metadata of the outputs. Raises what a rank raises.
    """
    context = _context()
    known: list[Run] = []

    def show(run: Run, lines: Sequence[LogLine]) -> None:
        if run not in known:
            known.append(run)
            _begin(context, run)
        printed(run, lines)

    return on_ranks.call(task, args, kwargs, show)


def _decorated(
    decorator: Any, ours: Any, function: Callable[..., Any] | None, options: dict[str, Any]
) -> Any:
    if function is None:
        return lambda each: ours(each, **options)
    theirs, given = on_ranks.divided(options, decorator)
    return decorator(**theirs)(on_ranks.on_ranks(function, given, call))


def _context() -> dagster.OpExecutionContext | None:
    try:
        return dagster.OpExecutionContext.get()
    except dagster.DagsterInvariantViolationError:  # called by itself, as in a test
        return None


def _begin(context: dagster.OpExecutionContext | None, run: Run) -> None:
    if context is None:
        return
    context.log.info(on_ranks.introduction(run))
    for output in context.op_def.output_defs:
        if not output.is_dynamic:  # metadata of these goes with each value
            context.add_output_metadata({_METADATA: run.id}, output_name=output.name)
