"""Other places for the values of `shanty.log`: a module for each, loaded when it is first used.

Each rank that logs has a record of its own there; the records of a run belong together. A place
whose package is not installed is an error at the first call. If a place fails later, one line
reports that and the place gets no more values: the run goes on.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from shanty._sinks.record import Place, Sink, record

VARIABLE = "SHANTY_LOG_TO"  # the environment variable with their names
NAME = "SHANTY_LOG_NAME"  # and the one with the run's
# The packages for each place, the best first; one of them must be installed.
PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
_LAST_WORDS = 2.0  # seconds for what is left to be written, when the script has failed


def missing(name: str) -> str:
    """The package that this Python lacks for a place; "" where it has one."""
    packages = PACKAGES[name]
    return "" if any(find_spec(package) is not None for package in packages) else packages[0]


def sink_of(name: str) -> type[Sink]:
    """The class for a place, loaded; raises what the import of its package raises."""
    if name == "tensorboard":
        from shanty._sinks import tensorboard

        return tensorboard.Sink
    if name == "mlflow":
        from shanty._sinks import mlflow

        return mlflow.Sink
    from shanty._sinks import wandb

    return wandb.Sink


class Sinks:
    """The requested places. Any thread may write; a fork of the process writes nothing.

    Raises ModuleNotFoundError if the package for a place is not installed, and ValueError for an
    unknown name.
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
                self._open[each] = sink_of(each)(place)
            except Exception as error:  # noqa: BLE001  whatever another package raises
                self._say(each, error)
        atexit.register(self.close)
        self._before, sys.excepthook = sys.excepthook, self._failed

    def write(self, values: Mapping[str, Any]) -> None:
        """Pass the values of one call to all places."""
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
        """Write the remaining values and close all places."""
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
        """Close all places in bounded time after an exception, perhaps without exit handlers."""
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
