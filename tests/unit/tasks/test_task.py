"""Tasks as objects: plain functions in a rank, methods, options."""

from __future__ import annotations

import functools
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import shanty
from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RUN_DIR
from shanty.tasks.task import Task


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """We are a rank of a run."""
    monkeypatch.setenv(RUN_DIR, "/nowhere")


@shanty.task(ranks=2, on="lab")
def add(x: int, y: int = 1) -> int:
    """Add two numbers."""
    return x + y


class Model:
    def __init__(self, base: int) -> None:
        self.base = base

    @shanty.task
    def plus(self, x: int) -> int:
        return self.base + x

    @shanty.task(ranks=1)
    @classmethod
    def made(cls, base: int) -> Any:
        return cls(base)

    @shanty.task
    @staticmethod
    def doubled(x: int) -> int:
        return 2 * x


@pytest.mark.usefixtures("rank")
def test_in_a_rank_it_is_the_plain_function() -> None:
    assert add(1, y=2) == 3
    assert Model(40).plus(2) == 42
    assert Model.plus(Model(1), 2) == 3
    assert Model.made(3).base == Model(0).made(3).base == 3
    assert Model.doubled(4) == 8
    for call in (lambda: add.submit(1), lambda: add.map([1]), lambda: shanty.each(add).submit(1)):
        with pytest.raises(RuntimeError, match="in a rank"):
            call()
    with pytest.raises(RuntimeError, match="not to a rank"):
        shanty.each(add)(1)


@pytest.mark.usefixtures("rank")
def test_arguments_may_have_any_name() -> None:
    def names(**more: int) -> list[str]:
        return [*more]

    assert shanty.task(names)(self=1, args=2, function=3) == ["self", "args", "function"]
    assert shanty.task(Model.plus.function)(self=Model(1), x=2) == 3
    with pytest.raises(RuntimeError, match="in a rank"):
        shanty.task(names).submit(self=1)


def test_it_looks_like_its_function() -> None:
    assert (add.__name__, add.__doc__) == ("add", "Add two numbers.")
    assert repr(add) == "<task add>"


def test_options() -> None:
    assert add.options == {"ranks": 2, "on": "lab"}
    more = add.with_options(ranks=8, cache="1")
    assert (more.options["ranks"], more.options["on"], add.options["ranks"]) == (8, "lab", 2)
    assert shanty.task(add.function).options == {}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"rankz": 3}, "unknown option 'rankz'"),
        ({"debug_rank": 1}, "unknown option 'debug_rank'"),
        ({"inputs": "data"}, "a task has no option 'inputs'"),
    ],
)
def test_options_that_there_are_not(options: dict[str, Any], what: str) -> None:
    """They are refused where they are written, not at the first call."""
    with pytest.raises(UsageError) as refused:
        shanty.task(**options)
    assert refused.value.what == what
    with pytest.raises(UsageError):
        add.with_options(**options)


@pytest.mark.usefixtures("rank")
def test_in_a_rank_options_were_looked_at() -> None:
    assert shanty.task(rankz=3)(len).options == {"rankz": 3}


def test_a_near_option_is_named() -> None:
    with pytest.raises(UsageError) as refused:
        shanty.task(rankz=3)
    assert refused.value.fix == "did you mean ranks?"


async def waits() -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_and_waits() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (waits, "waits is async"),
        (yields, "yields yields"),
        (yields_and_waits, "yields_and_waits yields"),
        (staticmethod(waits), "waits is async"),
        (functools.partial(waits), "is async"),
    ],
)
def test_functions_that_are_none_for_ranks(function: Any, word: str) -> None:
    with pytest.raises(TypeError, match=word):
        shanty.task(ranks=2)(function)


def test_methods_are_tasks_of_their_own() -> None:
    bound = Model(1).plus
    assert isinstance(bound, Task)
    assert bound.function.__self__.base == 1
    assert Model.made.options == {"ranks": 1}


def test_it_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(shanty.task(ranks=3)(len)))
    assert (again.function, again.options) == (len, {"ranks": 3})
