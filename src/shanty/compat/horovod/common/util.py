"""The helpers of Horovod that scripts use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, TypeVar

from shanty.collectives import world

T = TypeVar("T")
Value = TypeVar("Value")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether Horovod is there for a framework, and the framework itself is installed."""
    return ext_base_name in ("tensorflow", "torch") and find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """ImportError unless Horovod is there for a framework, given as in "horovod.torch"."""
    name = ext_name.rpartition(".")[2]
    if name not in ("tensorflow", "torch"):
        raise ImportError(f"{ext_name} is not in shanty's stand-in for Horovod", name=ext_name)
    if not extension_available(name):
        raise ImportError(f"{ext_name} needs {name}: pip install {name}", name=name)


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether there is a GPU that a framework can use."""
    if not extension_available(ext_base_name):
        return False
    if ext_base_name == "tensorflow":
        return bool(import_module("tensorflow").config.list_physical_devices("GPU"))
    return bool(import_module("torch").cuda.is_available())


def _built(answer: Callable[[], Value]) -> Callable[..., Value]:
    """Return a question about the world as it is asked here: `verbose` makes no difference."""

    def built(verbose: bool = False) -> Value:
        return answer()

    built.__doc__ = answer.__doc__
    return built


mpi_built = _built(world.mpi_built)
gloo_built = _built(world.gloo_built)
nccl_built = _built(world.nccl_built)
ddl_built = _built(world.ddl_built)
ccl_built = _built(world.ccl_built)


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables for the length of a block; those that are None are left."""
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function (op, average) → op, for calls that may still say `average`."""

    def choose(op: Any, average: bool | None) -> Any:
        if op is None:
            return reduce_ops.Sum if average is False else reduce_ops.Average
        if average is not None:
            raise ValueError("Give op or average, not both.")
        return op

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of 2."""
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741 (Horovod's name)
    """`l` in n parts, the first ones longer by one where it cannot be even."""
    size, longer = divmod(len(l), n)
    starts = [part * size + min(part, longer) for part in range(n + 1)]
    return [l[start:end] for start, end in pairwise(starts)]


def is_iterable(x: object) -> bool:
    """Return whether iter() takes it."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: object, target: object) -> bool:
    """Return whether a version is at least `target`, which is written MAJOR.MINOR.PATCH."""
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are texts, not {ver!r} and {target!r}")
    if target.count(".") != 2:
        raise ValueError(f"{target!r} is not written as MAJOR.MINOR.PATCH")
    return _release(ver) >= _release(target)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what makes it a pre-release or a local build."""
    plain = re.match(r"[0-9.]*", version)
    numbers = [int(part) for part in (plain[0] if plain else "").split(".") if part]
    return tuple(numbers + [0] * (3 - len(numbers)))
