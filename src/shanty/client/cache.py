"""Caches values of tasks by the arguments, the function's code and a version.

<home>/cache/values/KEY/results/1    as a run's, of which it is a copy
                        ranks.json   makes it complete
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle

from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.tasks import outcome
from shanty.tasks.data import Folder, content_hash
from shanty.tasks.pickling import PROTOCOL
from shanty.tasks.task import Task

LIMIT = 10 << 30  # bytes of all values
_GIVEN_UP = 86400.0  # seconds after which a value that is not complete never will be
_COMPLETE = "ranks.json"
_within: ContextVar[tuple[int, ...]] = ContextVar("_within", default=())  # these functions
_KNOWN = (bool, int, float, complex, str, bytes, type(None))


def key(
    function: Callable[..., Any],
    version: str,
    each: bool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Return the key of a call. Arguments by name and by place are the same call."""
    bound: Any
    try:
        signature = inspect.signature(function).bind(*args, **kwargs)
        signature.apply_defaults()
        bound = dict(signature.arguments)
    except (TypeError, ValueError):
        bound = [list(args), dict(kwargs)]
    digest = hashlib.sha256()
    for part in (version, str(each), getattr(function, "__qualname__", "")):
        digest.update(f"{len(part)} {part}\n".encode())
    digest.update(_of_function(function))
    digest.update(fingerprint(bound))
    return digest.hexdigest()[:40]


def _of_function(function: Callable[..., Any]) -> bytes:
    """Return the code, as it is written where that is known, and what it has taken from outside.

    Of a function with a decorator both: what calls it, and what it calls.
    """
    within = _within.get()
    if id(function) in within:  # it calls itself
        return b""
    token = _within.set((*within, id(function)))
    try:
        inner = [getattr(function, "__wrapped__", None)]
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # it is empty yet
                inner.append(cell.cell_contents)
        own = getattr(function, "__self__", None)  # of a method
        return _source(function) + fingerprint([inner, own])
    finally:
        _within.reset(token)


def _source(thing: Any) -> bytes:
    """Return what a function or class is: its text, else its code, else its name."""
    if getattr(thing, "__name__", "") != "<lambda>":  # of which a line may have several
        with contextlib.suppress(OSError, TypeError):  # made by exec, or in C
            # From its code, since inspect follows a wrapper to the wrapped function.
            return inspect.getsource(getattr(thing, "__code__", thing)).encode()
    if isinstance(thing, FunctionType | MethodType):
        return _of_code(thing.__code__)
    if callable(thing) and not hasattr(thing, "__qualname__"):  # an object, a functools.partial
        return fingerprint(thing)
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}".encode()


def _of_code(code: CodeType) -> bytes:
    constants = [_of_code(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code + fingerprint([code.co_names, code.co_varnames, constants])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Writes what is the same in each process: a function by its code, a class of the user's too.

    cloudpickle gives classes numbers by chance.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType):
            return bytes, (_of_function(obj),)
        if isinstance(obj, type) and obj.__module__ == "__main__":
            return bytes, (_source(obj),)
        return super().reducer_override(obj)


def _pickled(value: Any) -> bytes:
    """Pickle a value, if possible without noting which of its parts are the same object."""
    for fast in (True, False):  # fast goes round in circles
        file = io.BytesIO()
        pickler = _Pickler(file, protocol=PROTOCOL)
        pickler.fast = fast
        try:
            pickler.dump(value)
        except (RecursionError, ValueError, pickle.PicklingError):
            if not fast:
                raise
        else:
            return file.getvalue()
    raise AssertionError


def fingerprint(value: Any) -> bytes:
    """Return bytes that are the same for the same value, also in another process."""
    if isinstance(value, _KNOWN):
        return f"{type(value).__name__} {value!r}\n".encode()
    if isinstance(value, Folder):
        return f"folder {content_hash(value.path)}\n".encode()
    if isinstance(value, Mapping):
        items = [fingerprint(name) + fingerprint(each) for name, each in value.items()]
        return b"map " + _hashed(items)
    if isinstance(value, (set, frozenset)):
        return b"set " + _hashed(sorted(map(fingerprint, value)))
    if isinstance(value, (list, tuple)):
        return type(value).__name__.encode() + b" " + _hashed(list(map(fingerprint, value)))
    if isinstance(value, Task) or inspect.isfunction(value) or inspect.ismethod(value):
        function = value.function if isinstance(value, Task) else value
        return b"function " + _hashed([_of_function(function)])
    return b"other " + _hashed([_pickled(value)])


def _hashed(parts: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode() + part)
    return digest.digest()


def _kept(home: Path, key: str) -> RunDir:
    return RunDir(home / "cache" / "values" / key)


def read(home: Path, key: str) -> Any:
    """Return the value, of rank 0 or a list of all; KeyError where it is not there."""
    kept = _kept(home, key)
    try:
        found = read_json(kept.path / _COMPLETE)
        if found is None:
            raise KeyError(key)
        for folder in (kept.results / "data").glob("*/*"):
            if content_hash(folder) != folder.parent.name:
                raise ValueError(f"somebody has written into {folder}")
        os.utime(kept.path)  # it was used now
        if found["ranks"] is None:
            return outcome.read_value(kept, 0)
        return [outcome.read_value(kept, rank) for rank in range(found["ranks"])]
    except (KeyError, MemoryError):
        raise
    except Exception as error:  # it is damaged, or a class that it needs is missing
        shutil.rmtree(kept.path, ignore_errors=True)
        raise KeyError(key) from error


def keep(home: Path, key: str, run: RunDir, ranks: int | None) -> None:
    """Keep what a run has returned; without enough room for it, the next call runs again.

    The values that were not used for longest go, beyond `LIMIT`.
    """
    place = home / "cache" / "values"
    with contextlib.suppress(OSError):
        if _size(run.results) > LIMIT:
            return
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=place))
        try:
            shutil.copytree(run.results, _kept(home, folder.name).results)
            write_json(folder / _COMPLETE, {"ranks": ranks})
            folder.rename(place / key)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _make_room(place)


def _make_room(place: Path) -> None:
    entries = sorted(place.iterdir(), key=lambda entry: -entry.stat().st_mtime)
    used = 0
    for entry in entries:
        complete = (entry / _COMPLETE).exists()
        if not complete and entry.stat().st_mtime > time.time() - _GIVEN_UP:
            continue  # it is being made
        used += _size(entry)
        if used > LIMIT or not complete:
            shutil.rmtree(entry, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
