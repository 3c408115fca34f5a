"""What the ranks of a task have returned or raised, as files in the run's folder.

results/ATTEMPT/value-K.pickle    what rank K returned; without `each` rank 0's only
                error-K.pickle    what rank K raised: (the exception, pickled, or None; its
                                  traceback)
                data/HASH/        the content of a `Folder` that a rank returned
"""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from shanty.runtime.rundir import RunDir
from shanty.tasks import data, pickling
from shanty.tasks.errors import RemoteTraceback

_OURS = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


class Raised(NamedTuple):
    """What a rank raised; `pickled` is None where the exception cannot be pickled."""

    pickled: bytes | None
    kind: str
    text: str


def value_file(run: RunDir, rank: int) -> Path:
    """Return where the value of a rank is."""
    return run.results / f"value-{rank}.pickle"


def write_value(run: RunDir, rank: int, value: Any, what: str) -> None:
    """Keep what a rank returned; the file is there as a whole or not at all."""
    run.results.mkdir(parents=True, exist_ok=True)
    path = value_file(run, rank)
    temporary = path.with_suffix(".tmp")
    try:
        with data.packed(run.results / "data"), temporary.open("wb") as file:
            pickling.dump(value, file, what)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def read_value(run: RunDir, rank: int) -> Any:
    """Return what a rank returned; FileNotFoundError where it left nothing."""
    with data.packed(run.results / "data"), value_file(run, rank).open("rb") as file:
        return pickling.load(file)


def write_error(run: RunDir, rank: int, error: BaseException) -> None:
    """Keep what a rank raised, as far as possible."""
    with contextlib.suppress(OSError):
        run.results.mkdir(parents=True, exist_ok=True)
        (run.results / f"error-{rank}.pickle").write_bytes(pack_error(error))


def pack_error(error: BaseException) -> bytes:
    """Return an exception with its traceback, pickled, as far as that can be."""
    import io

    # This has a text even if the exception's own __str__ fails.
    described = traceback.TracebackException(type(error), error, own_frames_off(error))
    text = "".join(described.format()).rstrip()
    pickled = None
    # The exception itself, or else its parts: many have an __init__ that takes other arguments.
    for each in (error, _Parts(type(error), error.args, _state(error))):
        with contextlib.suppress(Exception):  # an exception with a lock in it, and the like
            file = io.BytesIO()
            pickling.dump(each, file, "the exception")
            _exception(file.getvalue())  # some can be written but not read
            pickled = file.getvalue()
            break
    kind = f"{type(error).__qualname__}: {described}"
    return pickle.dumps(tuple(Raised(pickled, kind, text)))


class _Parts(NamedTuple):
    """The parts of an exception whose constructor is not known."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: dict[str, Any]


def _state(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception that can be pickled."""
    return {name: each for name, each in vars(error).items() if pickling.can_be_pickled(each)}


def _exception(pickled: bytes) -> BaseException:
    """Return the exception that was pickled, whole or in parts."""
    found = pickle.loads(pickled)
    if isinstance(found, _Parts):
        error = found.kind.__new__(found.kind, *found.args)
        error.args = found.args
        vars(error).update(found.state)
        return error
    if not isinstance(found, BaseException):
        raise TypeError(f"{type(found).__name__} is not an exception")
    return found


def own_frames_off(error: BaseException) -> Any:
    """Return the traceback from the function's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace or error.__traceback__


def read_error(run: RunDir, rank: int, place: str) -> BaseException | None:
    """Return the exception of a rank with its traceback as its cause; None where it left none.

    `place` describes the rank: "rank 1 on b".
    """
    try:
        return unpack_error((run.results / f"error-{rank}.pickle").read_bytes(), place)
    except (OSError, pickle.UnpicklingError, EOFError, TypeError):
        return None


def unpack_error(data: bytes, place: str) -> BaseException:
    """Return what `pack_error` packed, with the traceback as its cause."""
    raised = Raised(*pickle.loads(data))
    error: BaseException | None = None
    if raised.pickled is not None:
        with contextlib.suppress(Exception):  # its class may not be importable here
            error = _exception(raised.pickled)
    if error is None:
        error = RuntimeError(f"{place} raised {raised.kind}")
    error.__cause__ = RemoteTraceback(f"{place}:\n{raised.text}")
    return error
