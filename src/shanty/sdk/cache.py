"""Values of tasks that were there before: by the arguments, the function's code and a version.

<home>/cache/values/KEY/results/    as a run's, of which it is a copy
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.tasks import outcome
from shanty.tasks.data import Folder, content_hash
from shanty.tasks.task import Task

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
    """Return the code, as it is written where that is known, and what it has taken from outside."""
    plain = inspect.unwrap(function)
    try:
        text = inspect.getsource(plain).encode()
    except (OSError, TypeError):
        text = cloudpickle.dumps(plain)
    cells = getattr(plain, "__closure__", None) or ()
    inner = [cell.cell_contents for cell in cells]
    own = getattr(function, "__self__", None)  # of a method
    return text + fingerprint([inner, own])


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
    data: bytes = cloudpickle.dumps(value)
    return b"other " + _hashed([data])


def _hashed(parts: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode() + part)
    return digest.digest()


def _kept(home: Path, key: str) -> RunDir:
    return RunDir(home / "cache" / "values" / key)


def has(home: Path, key: str) -> bool:
    """Return whether the value of that key is there."""
    return (_kept(home, key).path / "ranks.json").is_file()


def read(home: Path, key: str) -> Any:
    """Return the value: of rank 0, or a list of all."""
    kept = _kept(home, key)
    ranks = (read_json(kept.path / "ranks.json") or {}).get("ranks")
    if ranks is None:
        return outcome.read_value(kept, 0)
    return [outcome.read_value(kept, rank) for rank in range(ranks)]


def keep(home: Path, key: str, run: RunDir, ranks: int | None) -> None:
    """Keep what a run has returned; where there is no room for it, the next call runs again."""
    place = home / "cache" / "values"
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=place))
        try:
            if run.results.is_dir():
                shutil.copytree(run.results, folder / "results")
            write_json(folder / "ranks.json", {"ranks": ranks})
            folder.rename(place / key)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
