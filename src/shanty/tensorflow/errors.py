"""The errors of collectives where TensorFlow is eager: of TensorFlow's classes and of Horovod's.

A script may expect either. In a graph they are TensorFlow's alone, with the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shanty.collectives import errors
from shanty.tensorflow.installed import tf


class HorovodInternalError(tf.errors.FailedPreconditionError, errors.HorovodInternalError):  # type: ignore[misc]
    """The ranks disagreed, one of them left, or none came for too long."""


class ArgumentError(tf.errors.InvalidArgumentError, errors.ArgumentError):  # type: ignore[misc]
    """An argument is wrong by itself."""


class UnsupportedError(tf.errors.InvalidArgumentError, errors.UnsupportedError):  # type: ignore[misc]
    """An argument has a meaning, and no implementation."""


class DuplicateNameError(tf.errors.InvalidArgumentError, errors.DuplicateNameError):  # type: ignore[misc]
    """A request of the same name is under way on this rank."""


class ProcessSetError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """A process set is not registered, or this rank is not in it."""


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
