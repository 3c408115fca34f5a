"""Where else the values of `shanty.log` go: one module a place, loaded when it is first used.

Each rank that logs has a record of its own there; those of one run belong together. A place that
is not installed is an error at the first call. One that fails later is said in one line and left
alone: a run never fails of it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

VARIABLE = "SHANTY_LOG_TO"  # the environment variable with their names
NAME = "SHANTY_LOG_NAME"  # and the one with the run's
# By the name of the place: packages, of which one has to be there, the best first.
PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
_STEPS = ("step", "epoch")
_LAST_WORDS = 2.0  # seconds for what is left to be written, when the script has failed


class Place(NamedTuple):
    """Whose values they are: `folder` is for this place's files; `run` is "" without a run."""

    folder: Path
    run: str
    name: str
    rank: int

    @property
    def title(self) -> str:
        """What this rank's record is called."""
        return self.name if self.rank == 0 else f"{self.name} rank {self.rank}"


class Record(NamedTuple):
    """What one call of `shanty.log` said; time: seconds since 1970."""

    step: int
    time: float
    numbers: Mapping[str, float]
    texts: Mapping[str, str]


class Sink(Protocol):
    """One place, in a module of its own as the class `Sink`, made of the `Place`."""

    def __init__(self, place: Place) -> None:
        """Begin the record."""

    def write(self, record: Record) -> None:
        """Add to it."""

    def close(self, *, failed: bool) -> None:
        """Write what is left, and how the script ended."""


def record(values: Mapping[str, Any], count: int) -> Record:
    """Sort the values of one call: its step is that of `step`, else of `epoch`, else `count`."""
    step, of_step = count, ""
    for name in _STEPS:
        value = values.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value % 1 == 0:
            step, of_step = int(value), name
            break
    others = {name: value for name, value in values.items() if name != of_step}
    numbers = {n: float(v) for n, v in others.items() if isinstance(v, (bool, int, float))}
    texts = {name: value for name, value in others.items() if isinstance(value, str)}
    return Record(step, time.time(), numbers, texts)


def missing(name: str) -> str:
    """The package that this Python lacks for a place; "" where it has one."""
    packages = PACKAGES[name]
    return "" if any(find_spec(package) is not None for package in packages) else packages[0]


class Sinks:
    """The places that were asked for. Any thread may write; a fork of the process writes nothing.

    Raises ModuleNotFoundError where the package for one of them is not installed, and ValueError
    for a name that is none.
    """

    def __init__(self, names: Sequence[str], artifacts: Path, run: str, name: str, rank: int):
        for each in names:
            if each not in PACKAGES:
                raise ValueError(f"{VARIABLE}: {each!r} is none of {', '.join(PACKAGES)}")
            package = missing(each)
            if package:
                text = f"--log-to {each} needs {package}, which {sys.executable} does not have"
                raise ModuleNotFoundError(text, name=package)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._count = 0
        self._open: dict[str, Sink] = {}
        for each in names:
            place = Place(artifacts / each, run, name or run or "shanty", rank)
            try:
                place.folder.mkdir(parents=True, exist_ok=True)
                self._open[each] = import_module(f"{__name__}.{each}").Sink(place)
            except Exception as error:  # noqa: BLE001  whatever another package has to say
                self._say(each, error)
        atexit.register(self.close)
        self._before, sys.excepthook = sys.excepthook, self._failed

    def write(self, values: Mapping[str, Any]) -> None:
        """Hand the values of one call on."""
        if os.getpid() != self._process:
            return
        with self._lock:
            entry = record(values, self._count)
            self._count += 1
            for name, sink in list(self._open.items()):
                try:
                    sink.write(entry)
                except Exception as error:  # noqa: BLE001
                    self._say(name, error)
                    del self._open[name]

    def close(self, *, failed: bool = False) -> None:
        """Write what is left, and no more."""
        if os.getpid() != self._process:
            return
        with self._lock:
            sinks, self._open = self._open, {}
        for name, sink in sinks.items():
            try:
                sink.close(failed=failed)
            except Exception as error:  # noqa: BLE001
                self._say(name, error)

    def _failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """The script ends by an exception, perhaps without an end of Python's: nobody may wait."""
        self._before(kind, error, trace)
        thread = threading.Thread(target=self.close, kwargs={"failed": True}, daemon=True)
        thread.start()
        thread.join(_LAST_WORDS)

    def _say(self, name: str, error: Exception) -> None:
        text = str(error).strip().partition("\n")[0]
        why = f"{type(error).__name__}: {text}" if text else type(error).__name__
        print(
            f"shanty: nothing more is logged to {name}: {why}. The run goes on, and keeps all "
            "values in metrics.jsonl.",
            file=sys.stderr,
            flush=True,
        )
