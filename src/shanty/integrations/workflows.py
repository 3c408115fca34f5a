"""What the adapters have in common: a function that calls a task of ours, in a task of theirs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from shanty.client import calls
from shanty.client.runs import LogLine, Run
from shanty.runtime.counted import counted
from shanty.runtime.frames import last_state
from shanty.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


def divided(
    options: Mapping[str, Any], decorator: Callable[..., Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell the options of an engine's decorator from those of `shanty.task`.

    What both know (`name`, `retries`, `tags`) is the engine's.
    """
    known = inspect.signature(decorator).parameters
    theirs = {name: value for name, value in options.items() if name in known}
    return theirs, {name: value for name, value in options.items() if name not in known}


def on_ranks(
    function: Callable[P, R], options: Mapping[str, Any], call: Callable[..., Any]
) -> Callable[P, R]:
    """Return a plain function that has `call` call this one on ranks.

    It looks like `function`, so that an engine finds its name, its arguments and its source.
    """
    task = function if isinstance(function, Task) else Task(function, {})
    task = task.with_options(**options)

    @functools.wraps(task.function)
    def calling(*args: P.args, **kwargs: P.kwargs) -> R:
        value: R = call(task, *args, **kwargs)
        return value

    return calling


def call(task: Task[..., R], args: Sequence[Any], kwargs: Mapping[str, Any], show: calls.Show) -> R:
    """Call a task, and pass on its lines; what `show` raises stops the run, and so do signals.

    The ranks get what they need of the function's module, and do not import it: it imports the
    engine, which hosts need not have.
    """
    module = getattr(task.function, "__module__", None) or ""
    value: R = calls.submit(task, args, kwargs, show=show, by_value=[module]).result()
    return value


def introduction(run: Run) -> str:
    """Return the message about a run that has begun."""
    job = run.job
    ranks = counted(job.ranks, "rank") if job and job.ranks else "a rank for each slot"
    where = f" on {job.on}" if job and job.on else ""
    return f"run {run.id}, {ranks}{where}: shanty logs -f {run.id}, shanty stop {run.id}"


def shown(line: LogLine) -> str:
    """Return a line with its rank as a terminal shows it: a progress bar in its last state."""
    label = "" if line.rank is None else f"[{line.rank}] "
    return label + last_state(line.text.encode()).lstrip(b"\r").decode()
