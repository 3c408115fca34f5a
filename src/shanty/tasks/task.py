"""The task: a function, and where its ranks run. In a rank it is that function."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from shanty import _starter
from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RUN_DIR

if TYPE_CHECKING:
    from shanty.client.future import Future

P = ParamSpec("P")
R = TypeVar("R")


def in_rank() -> bool:
    """Return whether this process is a rank of a run."""
    return RUN_DIR in os.environ


class Task(Generic[P, R]):
    """A function that is called on ranks; made by `shanty.task`.

    Calling it starts a run, shows its output and waits: the value is what rank 0 returns. In a
    rank, and in what a task calls, it is the plain function.
    """

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any]) -> None:
        self.function = function
        self.options = dict(options)
        functools.update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it, show its output, and return what rank 0 returns; raise what a rank raises."""
        if in_rank():
            return self.function(*args, **kwargs)
        starter = _starter.load()
        future: Future[R] = starter.submit(self, args, kwargs, show=starter.printed)
        return future.result()

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Start a run and come back at once; `.result()` waits for the value, so does `await`."""
        _refuse_in_rank(self)
        found: Future[R] = _starter.load().submit(self, args, kwargs)
        return found

    def map(
        self, values: Iterable[Any], *more: Iterable[Any], at_once: int | None = None
    ) -> list[R]:
        """Call it for each value, on different machines at the same time; values in their order.

        With several iterables, as `map` has them, it is called with one of each. `at_once`: how
        many runs at a time at most; None: as many as fit on the machines. The first exception
        ends it, and stops the others.
        """
        _refuse_in_rank(self)
        calls = zip(values, *more, strict=True)
        found: list[R] = _starter.load().map_calls(self, calls, at_once)
        return found

    def with_options(self, **changes: Any) -> Task[P, R]:
        """Return the same function as a task with other options: `train.with_options(ranks=8)`."""
        _refuse_options(changes)
        return Task(self.function, {**self.options, **changes})

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method of a class, it is a task of the bound method."""
        if instance is None and not isinstance(self.function, (classmethod, staticmethod)):
            return self
        bound = self.function.__get__(instance, owner)
        return Task(bound, self.options)

    def __reduce__(self) -> Any:
        return Task, (self.function, self.options)

    def __repr__(self) -> str:
        return f"<task {getattr(self.function, '__qualname__', self.function)}>"


class Each(Generic[P, R]):
    """A task whose value is a list: what each rank returns, by rank."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Run it, show its output, and return what the ranks return."""
        if in_rank():
            raise RuntimeError(
                "the values of all ranks go to the caller that starts the ranks, not to a rank"
            )
        starter = _starter.load()
        future: Future[list[R]] = starter.submit(
            self._task, args, kwargs, show=starter.printed, each=True
        )
        return future.result()

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[list[R]]:
        """Start a run and come back at once."""
        _refuse_in_rank(self._task)
        found: Future[list[R]] = _starter.load().submit(self._task, args, kwargs, each=True)
        return found


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    ranks: int | None = None,
    on: str | None = None,
    retries: int = 0,
    cache: str | None = None,
    memory: str | None = None,
    **options: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a task, which is called on ranks.

    `ranks`: how many; None: one for each slot. `on`: where, as for `shanty run --on`; None: this
    machine. `retries`: further attempts where a host was lost or taken away, or (with `memory`)
    memory ran out; not where the function failed. `memory="x2"`: such an attempt gets twice the
    memory_per_rank. `cache`: a version; the value for the same arguments, code and version is
    kept. All other options are those of `shanty run`, by their names in Python.

    Raises UsageError for an unknown option, TypeError for a function that is async or yields.
    """
    if function is not None and not callable(function):
        raise TypeError(f"options have names: @shanty.task(ranks={function!r})")
    _refuse_options(options)

    def make(each: Callable[..., Any]) -> Task[..., Any]:
        _refuse_unfit(each)
        return Task(each, options)

    return make if function is None else make(function)


def _refuse_options(names: Collection[str]) -> None:
    if "inputs" in names:
        raise UsageError(
            "a task has no option 'inputs'", "its inputs are its call", "pass a shanty.Folder to it"
        )
    if not in_rank():  # in a rank the caller has already checked them
        _starter.load().refuse_unknown(names, ("cache", "memory"))


def _refuse_unfit(function: Any) -> None:
    plain = inspect.unwrap(getattr(function, "__func__", function))  # a classmethod has one
    name = getattr(plain, "__qualname__", repr(plain))
    if inspect.iscoroutinefunction(plain):
        raise TypeError(
            f"{name} is async, and nothing awaits it in a rank: call asyncio.run in a function"
        )
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise TypeError(
            f"{name} yields, and generators cannot be sent to other processes: return a list"
        )


def each(function: Task[P, R]) -> Each[P, R]:
    """Return a task that gives the values of all ranks: `shanty.each(train)(0.1)[3]`."""
    if not isinstance(function, Task):
        raise TypeError("shanty.each takes a task, before it is called: shanty.each(train)(0.1)")
    return Each(function)


def _refuse_in_rank(found: Task[..., Any]) -> None:
    if in_rank():
        raise RuntimeError(
            f"{found!r} is submitted in a rank; there it is a plain function: call it"
        )
