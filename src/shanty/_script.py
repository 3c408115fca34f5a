"""What `import shanty` gives a script; kept apart so that importing the package stays light."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shanty.runtime.mpi.processes import LOCAL_RANK, RANK, SIZE, number
from shanty.runtime.rank import reports
from shanty.runtime.rundir import RUN_DIR, RunDir, append_line, write_json

if TYPE_CHECKING:
    from shanty._sinks import Sinks

__all__ = ["LOCAL_RANK", "RANK", "SIZE", "artifacts", "log", "place", "progress"]

T = TypeVar("T")
_LOG_TO, _LOG_NAME = "SHANTY_LOG_TO", "SHANTY_LOG_NAME"  # what `_sinks` has, without loading it
_opening = threading.Lock()
_places: list[Sinks] = []  # once something was logged
# The numbers that were logged: "finite"; "infinite" and "NaN" once that was reported.
_known: dict[str, str] = {}
_calls = itertools.count(1)  # of `log`
_EVERY = 0.2  # seconds between two words on how far a loop is


def run_dir() -> RunDir | None:
    """The directory of the run that this process belongs to; None without a run."""
    path = os.environ.get(RUN_DIR)
    return RunDir(Path(path)) if path else None


def place(names: tuple[str, ...], own: str, default: int) -> int:
    """A number that the launcher gave, else the variable `own`, else `default`."""
    found = number(os.environ, names)
    return found if found is not None else int(os.environ.get(own) or default)


def log(values: dict[str, Any]) -> None:
    """Append `values` to the run's metrics.jsonl; without a run, print them.

    What SHANTY_LOG_TO names gets them, too.
    """
    rank = place(RANK, "RANK", 0)
    known = {name: _python(value) for name, value in values.items()}
    record = {
        "time": round(time.time(), 3),
        "rank": rank,
        **{name: _plain(value) for name, value in known.items()},
    }
    run = run_dir()
    if run is not None:
        append_line(run.metrics, record)
    else:
        print(" ".join(f"{key}={_short(value)}" for key, value in values.items()))
    _watch(known, rank)
    if os.environ.get(_LOG_TO):
        _opened(rank).write(known)


def _watch(values: dict[str, Any], rank: int) -> None:
    """Report the first NaN, and the first Infinity, of each number that this process logs.

    Infinity is reported where the number was finite before: the best loss so far may begin with it.
    """
    call = next(_calls)
    for name, value in values.items():
        before = _known.get(name)
        if not isinstance(value, float) or before == "NaN":
            continue
        if math.isfinite(value):
            _known[name] = before or "finite"
        elif math.isnan(value) or before == "finite":
            _known[name] = "NaN" if math.isnan(value) else "infinite"
            step = next((each for each in ("step", "epoch") if each in values), "")
            at = f"{step} {_short(values[step])}" if step else f"call {call} of shanty.log"
            _report(name, _plain(value), at, rank)


def _report(name: str, value: str, at: str, rank: int) -> None:
    world = os.environ.get("SHANTY_WORLD", "0")
    with contextlib.suppress(OSError, KeyError):  # the run has ended, or this is not in a run
        channel = reports.open_reports(os.environ[reports.FIFO])
        try:
            found: dict[str, reports.Value] = {"name": name, "value": value, "place": at}
            reports.send(channel, {"event": "not-finite", "rank": rank, "world": world, **found})
        finally:
            os.close(channel)


def _opened(rank: int) -> Sinks:
    """The other places that values go to; they are opened by the first call."""
    with _opening:
        if not _places:
            from shanty._sinks import Sinks

            names = [name for name in os.environ[_LOG_TO].split(",") if name]
            run = os.environ.get("SHANTY_RUN_ID", "")
            _places.append(Sinks(names, artifacts(), run, os.environ.get(_LOG_NAME, ""), rank))
        return _places[0]


def _python(value: Any) -> Any:
    """A number of any library as Python's own; anything but numbers and texts as its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    item = getattr(value, "item", None)
    if callable(item):
        with contextlib.suppress(ValueError, TypeError, RuntimeError):
            return _python(item())
    return str(value)


def _plain(value: Any) -> Any:
    """The same as JSON has it, which has no word for some numbers."""
    value = _python(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _short(value: Any) -> str:
    plain = _plain(value)
    return f"{plain:.6g}" if isinstance(plain, float) else str(plain)


def artifacts() -> Path:
    """The folder whose files are kept with the run; without a run, ./artifacts."""
    run = run_dir()
    folder = run.artifacts if run is not None else Path("artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def progress(items: Iterable[T], total: int | None, label: str) -> Iterator[T]:
    """Pass `items` on and tell how far the loop is: rank 0 only, a few times a second."""
    if place(RANK, "RANK", 0) != 0:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    run, began, reported, last = run_dir(), time.monotonic(), 0.0, 0
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if now > reported + _EVERY:
                _tell(run, done, total, label, now - began)
                reported = now
            yield item
            last = done + 1
    finally:  # a loop that is left early, too
        _tell(run, last, total, label, time.monotonic() - began)
        if run is None and sys.stderr.isatty():
            print(file=sys.stderr)


def _tell(run: RunDir | None, done: int, total: int | None, label: str, took: float) -> None:
    if run is not None:
        with contextlib.suppress(OSError):  # a bar is not worth a failed run
            write_json(
                run.progress,
                {"done": done, "total": total, "label": label, "seconds": round(took, 2)},
            )
    elif sys.stderr.isatty():
        of = f"/{total}" if total is not None else ""
        rate = f" {done / took:.1f}/s" if took > 0 else ""
        print(f"\r{label + ' ' if label else ''}{done}{of}{rate}\033[K", end="", file=sys.stderr)
