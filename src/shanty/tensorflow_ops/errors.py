"""The errors of collectives, which derive from TensorFlow's classes and from Horovod's.

A script may expect either. An exception that a Python function raises in a graph leaves the graph
as TensorFlow's UnknownError, or InvalidArgumentError for a ValueError, with its name and text in
the message. So TensorFlow's class creates a `GraphError` for such a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shanty.collectives import errors
from shanty.tensorflow_ops.installed import tf


class HorovodInternalError(tf.errors.FailedPreconditionError, errors.HorovodInternalError):  # type: ignore[misc]
    """The ranks disagreed, one of them left, or the wait for a rank took too long."""


class ArgumentError(tf.errors.InvalidArgumentError, errors.ArgumentError):  # type: ignore[misc]
    """An argument is wrong by itself."""


class UnsupportedError(tf.errors.InvalidArgumentError, errors.UnsupportedError):  # type: ignore[misc]
    """An argument has a meaning, and no implementation."""


class DuplicateNameError(tf.errors.InvalidArgumentError, errors.DuplicateNameError):  # type: ignore[misc]
    """A request of the same name is under way on this rank."""


class ProcessSetError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """A process set is not registered, or this rank is not in it."""


class GraphError(
    tf.errors.UnknownError,  # type: ignore[misc]
    tf.errors.FailedPreconditionError,  # type: ignore[misc]
    errors.HorovodInternalError,
):
    """A HorovodInternalError from within a graph."""

    def __init__(self, node_def: Any, op: Any, message: str, *args: Any) -> None:
        code = tf.errors.FAILED_PRECONDITION
        tf.errors.OpError.__init__(self, node_def, op, message, code, *args)


def _made(kind: Any, *args: Any, **named: Any) -> Any:
    """Create an UnknownError, or a GraphError for the message of a HorovodInternalError."""
    words = f"{errors.HorovodInternalError.__name__}: "
    message = named.get("message", args[2] if len(args) > 2 else None)
    if kind is tf.errors.UnknownError and words in str(message):
        kind = GraphError
    return Exception.__new__(kind, *args)


tf.errors.UnknownError.__new__ = _made

_CLASSES: dict[type[Exception], type[Exception]] = {
    errors.HorovodInternalError: HorovodInternalError,
    errors.ArgumentError: ArgumentError,
    errors.UnsupportedError: UnsupportedError,
    errors.DuplicateNameError: DuplicateNameError,
    ValueError: ProcessSetError,
}


@contextmanager
def of_tensorflow() -> Iterator[None]:
    """Raise the errors of collectives in this block as TensorFlow's, too."""
    try:
        yield
    except (ValueError, errors.HorovodInternalError) as error:
        kind = _CLASSES.get(type(error))
        if kind is None:
            raise
        raise kind(None, None, str(error)) from error.__cause__
