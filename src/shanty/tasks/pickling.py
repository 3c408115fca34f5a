"""Pickles by cloudpickle, and names what cannot be pickled.

cloudpickle takes functions, classes and modules that others cannot import by value: those of
`__main__`, of notebooks, closures and lambdas.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import IO, Any, NewType

import cloudpickle

from shanty.tasks.errors import NotPicklableError

PROTOCOL = 5  # of Python 3.8 and later
_CACHED = type(functools.cache(len))
_DEEPEST = 6  # levels of attributes and elements that are searched for the culprit
_NO_FILE = "<dynamic-code>"  # what cloudpickle writes for the name of a function's file


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Keeps the names of files, so that a rank's traceback shows the lines.

    A function with functools.cache goes like any other, and so does a NewType, which functions are
    annotated with: cloudpickle sends their names only.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _CACHED) and _goes_by_value(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, NewType) and _goes_by_value(obj):
            return NewType, (obj.__name__, obj.__supertype__)
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        make, args = self.dispatch_table[CodeType](obj)
        path = Path(obj.co_filename)
        if path.is_relative_to(Path.cwd()):  # where ranks elsewhere have it, too
            path = path.relative_to(Path.cwd())
        return make, tuple(str(path) if each == _NO_FILE else each for each in args)


def _goes_by_value(thing: Any) -> bool:
    """Return whether ranks could not import it, as cloudpickle would see that of a function."""
    module, name = thing.__module__, thing.__qualname__
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    parents = module.split(".")
    if any(".".join(parents[: count + 1]) in by_value for count in range(len(parents))):
        return True
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not thing


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


class _Nowhere(io.RawIOBase):
    """Discards what is written, which may be gigabytes: for trying whether it can be written."""

    def write(self, data: Any, /) -> int:
        """Forget it."""
        return len(data)


def _write(value: Any, file: Any) -> None:
    _Pickler(file, protocol=PROTOCOL).dump(value)


def dump(value: Any, file: IO[bytes] | io.RawIOBase, what: str) -> None:
    """Write `value`, pickled; NotPicklableError, which names its part, where that cannot be.

    `what` describes the value: "the value of train()".
    """
    try:
        _write(value, file)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # whatever an object raises in __reduce__
        if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
            raise NotPicklableError(f"{what} cannot be sent: it is nested too deeply") from None
        place, culprit = _culprit(value, what, _DEEPEST, set())
        name = f"{type(culprit).__module__}.{type(culprit).__qualname__}"
        raise NotPicklableError(
            f"{place} cannot be sent between processes: it is a {name.removeprefix('builtins.')} "
            f"({error})"
        ) from error


def _culprit(value: Any, place: str, depth: int, seen: set[int]) -> tuple[str, Any]:
    """Return the smallest part of `value` that cannot be pickled, after a text for its place."""
    seen.add(id(value))
    for name, part in _parts(value, place) if depth else ():
        if id(part) not in seen and not can_be_pickled(part):
            return _culprit(part, name, depth - 1, seen)
    return place, value


def _parts(value: Any, place: str) -> list[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        used = value.__code__.co_names
        free = value.__code__.co_freevars
        cells = zip(free, value.__closure__ or (), strict=True)
        own = f"{value.__qualname__}()"
        inside = [(f"{name!r}, which {own} uses,", _content(cell)) for name, cell in cells]
        names = [name for name in used if name in value.__globals__]
        inside += [(f"{name!r}, which {own} uses,", value.__globals__[name]) for name in names]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*inside, *((f"a default of {own}", each) for each in defaults)]
    if isinstance(value, MethodType):
        return [(f"the object of {value.__qualname__}()", value.__self__)]
    if isinstance(value, Mapping):
        return [(f"{place}[{key!r}]", each) for key, each in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"{place}[{at}]", each) for at, each in enumerate(value)]
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict) and not isinstance(value, type):
        return [(f"{place}.{name}", each) for name, each in state.items()]
    return []


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return None


def can_be_pickled(value: Any) -> bool:
    """Return whether a value can be written; it is not kept."""
    try:
        _write(value, _Nowhere())
    except Exception:  # noqa: BLE001  whatever an object raises in __reduce__
        return False
    return True


def load(file: IO[bytes]) -> Any:
    """Return what `dump` wrote."""
    return pickle.load(file)


def refuse_unpicklable(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise NotPicklableError, which names it, where a part of a call cannot be sent."""
    dump_call(func, args, kwargs, _Nowhere())


def dump_call(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    file: IO[bytes] | io.RawIOBase,
) -> None:
    """Write a call; NotPicklableError names the argument that cannot be sent."""
    name = getattr(func, "__qualname__", type(func).__qualname__)
    try:
        _write((func, tuple(args), dict(kwargs)), file)
    except (MemoryError, OSError):
        raise
    except Exception:  # then each by itself, to tell which it is
        for key, each in [*enumerate(args, 1), *kwargs.items()]:
            which = f"argument {key!r}" if isinstance(key, str) else f"argument {key}"
            dump(each, _Nowhere(), f"{which} of {name}()")
        dump(func, _Nowhere(), f"the function {name}()")
        raise
