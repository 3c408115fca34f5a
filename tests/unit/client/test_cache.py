"""Values that are kept: the key of a call, and what is there under it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shanty.client import cache
from shanty.runtime.rundir import RunDir
from shanty.tasks import outcome
from shanty.tasks.data import Folder

SOURCE = Path(__file__).parents[3] / "src"


def train(x: Any, y: int = 2) -> Any:
    return x, y


def key(*args: Any, function: Callable[..., Any] = train, version: str = "1", **kwargs: Any) -> str:
    return cache.key(function, version, False, args, kwargs)


def test_the_same_call_however_it_is_written() -> None:
    assert key(1) == key(1, 2) == key(x=1, y=2) == key(y=2, x=1)


def test_other_arguments_versions_and_ranks() -> None:
    calls = [key(each) for each in (1, 1.0, True, "1", None, b"1", (1,), [1], {1}, {"a": 1}, 2)]
    calls += [key(1, 3), key(1, version="2"), cache.key(train, "1", True, (1,), {})]
    calls += [key(np.arange(3)), key(np.arange(4)), key(np.arange(3.0)), key([1, [2]]), key([1, 2])]
    assert len(set(calls)) == len(calls)
    assert key(np.arange(3)) == key(np.arange(3))


def test_the_code_counts_and_what_it_has_taken() -> None:
    def made(offset: Any, more: int = 0) -> Callable[[int], int]:
        return lambda x: x + offset + more

    assert key(1, function=made(1)) == key(1, function=made(1))
    assert key(1, function=made(1)) != key(1, function=made(2))
    one, two = (lambda x: x + 1), (lambda x: x + 2)
    assert key(1, function=one) != key(1, function=two)
    partial = functools.partial
    assert key(function=partial(train, 1)) == key(function=partial(train, 1))
    assert key(function=partial(train, 1)) != key(function=partial(train, 2))


def test_decorators_count() -> None:
    """By their code, and by what they were made with."""

    def times(factor: int) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def scaled(*args: Any) -> Any:
                return function(*args) * factor

            return scaled

        return decorate

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    made = (train, times(2)(train), times(3)(train), logged(train), functools.cache(train))
    assert len({key(1, function=each) for each in made[:4]}) == 4
    assert key(1, function=times(2)(train)) == key(1, function=made[1])
    assert key(1, function=functools.cache(train)) == key(1, function=made[4])


def test_functions_made_by_exec() -> None:
    def made(text: str) -> Callable[..., Any]:
        names: dict[str, Any] = {}
        exec(text, names)
        found: Callable[..., Any] = names["f"]
        return found

    first = "def f(x):\n    return [y + 1 for y in x]\n"
    assert key([1], function=made(first)) == key([1], function=made(first))
    assert key([1], function=made(first)) != key([1], function=made(first.replace("1", "2")))
    assert key([1], function=made(first)) != key([1], function=made(first.replace("+", "-")))


def test_one_that_calls_itself() -> None:
    def made(step: int) -> Callable[[int], int]:
        def count(n: int) -> int:
            return 0 if n < 1 else count(n - step) + 1

        return count

    assert key(3, function=made(1)) == key(3, function=made(1))
    assert key(3, function=made(1)) != key(3, function=made(2))


def test_folders_by_their_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    same = key(Folder(tmp_path / "a"))
    assert key(Folder(tmp_path / "b")) == same
    (tmp_path / "a" / "file").write_text("other")
    assert key(Folder(tmp_path / "a")) != same


SCRIPT = """
import dataclasses, enum
from shanty.client import cache

@dataclasses.dataclass
class Config:
    name: str
    deep: object = None

class Kind(enum.Enum):
    A = "a"

def f(x):
    return x

names = {}
exec("def g(x):\\n    return x in {1, 2, 'three'}", names)
value = [Config("a", Config("a", [len, f])), Kind.A, {"b", "c", "d"}, Config]
print(cache.key(f, "1", False, (value,), {}), cache.key(names["g"], "1", False, (1,), {}))
"""


def test_other_processes_come_to_the_same_key(tmp_path: Path) -> None:
    """Also of instances of the script's own classes, and of a notebook's functions."""
    (tmp_path / "script.py").write_text(SCRIPT)
    keys = {
        subprocess.run(
            [sys.executable, tmp_path / "script.py"],
            env={"PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(keys) == 1


def test_what_goes_round_in_circles() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = self

    assert key(Node())


def test_what_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="lock"):
        key(threading.Lock())


# -------------------------------------------------------------------------------- what is kept


def kept(home: Path, name: str, values: list[Any], *, each: bool = False) -> None:
    run = RunDir(home / "runs" / name)
    run.path.mkdir(parents=True)
    for rank, value in enumerate(values):
        outcome.write_value(run, rank, value, "it")
    cache.keep(home, name, run, len(values) if each else None)


def test_values_are_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        cache.read(tmp_path, "one")
    kept(tmp_path, "one", [{"a": 1}])
    kept(tmp_path, "all", [1, 2], each=True)
    kept(tmp_path, "none", [None])
    assert cache.read(tmp_path, "one") == {"a": 1}
    assert cache.read(tmp_path, "all") == [1, 2]
    assert cache.read(tmp_path, "none") is None
    assert (tmp_path / "cache" / "values" / "one").stat().st_mode & 0o077 == 0


def test_the_first_of_two_stays(tmp_path: Path) -> None:
    kept(tmp_path, "one", [1])
    run = RunDir(tmp_path / "runs" / "other")
    run.path.mkdir()
    outcome.write_value(run, 0, 2, "it")
    cache.keep(tmp_path, "one", run, None)
    assert cache.read(tmp_path, "one") == 1
    assert [path.name for path in (tmp_path / "cache" / "values").iterdir()] == ["one"]


def test_a_damaged_one_is_none(tmp_path: Path) -> None:
    kept(tmp_path, "one", [1])
    folder = tmp_path / "cache" / "values" / "one"
    next(folder.rglob("value-0.pickle")).write_bytes(b"\x80")
    with pytest.raises(KeyError):
        cache.read(tmp_path, "one")
    assert not folder.exists()
    (tmp_path / "runs" / "one").rename(tmp_path / "runs" / "before")
    kept(tmp_path, "one", [2])
    assert cache.read(tmp_path, "one") == 2


def test_a_folder_that_was_changed_is_none(tmp_path: Path) -> None:
    """Whoever gets a folder from the cache is at the place where it is kept."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    run = RunDir(tmp_path / "run")
    outcome.write_value(run, 0, Folder(tmp_path / "model"), "it")
    cache.keep(tmp_path, "k", run, None)
    found = cache.read(tmp_path, "k") / "weights"
    assert (cache.read(tmp_path, "k") / "weights").read_text() == "1"
    found.write_text("2")
    with pytest.raises(KeyError):
        cache.read(tmp_path, "k")


def test_what_was_not_used_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LIMIT", 2500)
    kept(tmp_path, "a", [bytes(1000)])
    kept(tmp_path, "b", [bytes(1000)])
    for name, then in (("a", 1), ("b", 2)):
        os.utime(tmp_path / "cache" / "values" / name, (then, then))
    assert cache.read(tmp_path, "a") == bytes(1000)
    kept(tmp_path, "c", [bytes(1000)])
    assert cache.read(tmp_path, "a") == cache.read(tmp_path, "c") == bytes(1000)
    with pytest.raises(KeyError):
        cache.read(tmp_path, "b")
    kept(tmp_path, "large", [bytes(3000)])  # which would leave no room for any
    with pytest.raises(KeyError):
        cache.read(tmp_path, "large")
    assert cache.read(tmp_path, "a") == bytes(1000)


def test_one_that_never_became_complete_goes(tmp_path: Path) -> None:
    old, new = (tmp_path / "cache" / "values" / name for name in ("tmpold", "tmpnew"))
    for folder in (old, new):
        (folder / "results").mkdir(parents=True)
    os.utime(old, (1, 1))
    kept(tmp_path, "one", [1])
    assert (old.exists(), new.exists()) == (False, True)
