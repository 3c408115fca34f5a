"""Values on their way between processes, and the names of those that cannot go."""

from __future__ import annotations

import functools
import io
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from shanty.tasks import pickling
from shanty.tasks.errors import NotPicklableError

LOCK = threading.Lock()


def through(value: Any) -> Any:
    file = io.BytesIO()
    pickling.dump(value, file, "it")
    file.seek(0)
    return pickling.load(file)


def refused(value: Any) -> str:
    with pytest.raises(NotPicklableError) as raised:
        pickling.dump(value, io.BytesIO(), "the value of f()")
    return str(raised.value)


class Holder:
    def __init__(self, content: Any) -> None:
        self.content = content


def test_functions_go_with_what_they_use() -> None:
    offset = 3
    assert through(lambda x: x + offset)(4) == 7


@functools.cache
def known(x: int) -> int:
    return x + 1


def test_what_cloudpickle_sends_by_name_only() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import functools, typing\nId = typing.NewType('Id', int)\n"
        "@functools.lru_cache(maxsize=7)\ndef double(x):\n    return x * 2\n"
        "def f(x):\n    return double(x)\n",
        names,
    )
    found = through(names["f"])
    assert found(4) == 8
    double = found.__globals__["double"]
    assert double.cache_parameters()["maxsize"] == 7
    assert through(names["Id"]).__supertype__ is int
    assert through(functools.cache(lambda x: x + 1))(2) == 3
    assert through(known) is known  # which can be imported


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (LOCK, "the value of f() cannot be sent between processes: it is a _thread.lock"),
        ([1, {"a": LOCK}], "the value of f()[1]['a'] cannot be sent"),
        ({"model": Holder(Holder(LOCK))}, "the value of f()['model'].content.content cannot"),
        ((x for x in ()), "it is a generator"),
    ],
)
def test_the_part_that_cannot_go_is_named(value: Any, name: str) -> None:
    assert name in refused(value)


def test_what_a_function_uses_is_named() -> None:
    lock = threading.Lock()

    def uses_closure() -> Any:
        return lock

    def has_default(each: Any = lock) -> Any:
        return each

    assert "'lock', which" in refused(uses_closure)
    assert "uses_closure() uses, cannot be sent" in refused(uses_closure)
    assert "a default of" in refused(has_default)
    assert "the object of" in refused(Holder(lock).__init__)


def test_a_global_is_named(tmp_path: Path) -> None:
    names: dict[str, Any] = {"LOCK": LOCK, "__name__": "__main__"}
    exec("def f():\n    return LOCK\n", names)
    assert "'LOCK', which f() uses, cannot be sent" in refused(names["f"])


def test_arguments_are_named() -> None:
    def call(*args: Any, **kwargs: Any) -> str:
        with pytest.raises(NotPicklableError) as raised:
            pickling.refuse_unpicklable(through, args, kwargs)
        return str(raised.value)

    assert call(1, LOCK).startswith("argument 2 of through() cannot be sent")
    assert call(value=[LOCK]).startswith("argument 'value' of through()[0] cannot be sent")


def test_too_deep() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in refused(deep)
    while deep:  # or its end would be as deep
        deep = deep.pop()


def test_what_an_object_raises_itself() -> None:
    class OddError(Exception):
        pass

    class Odd:
        def __reduce__(self) -> Any:
            raise OddError("not today")

    text = refused([Odd()])
    assert "the value of f()[0]" in text
    assert "not today" in text


def test_tracebacks_show_the_file() -> None:
    """A function that was sent knows in which file it was written."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def f():\n    return 1\n", "/some/where/train.py", "exec"), names)
    assert through(names["f"]).__code__.co_filename == "/some/where/train.py"


def test_large_values_are_not_copied_to_be_tried() -> None:
    assert pickling.can_be_pickled(bytes(10))
    assert not pickling.can_be_pickled(LOCK)
    assert pickle.loads(pickle.dumps(3, pickling.PROTOCOL)) == 3
