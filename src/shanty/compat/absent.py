"""What of Horovod is not in this package, or lacks its framework, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AbsentError(ImportError):
    """A part of Horovod that this stand-in does not have."""


def absent(name: str, instead: str) -> AbsentError:
    """The error of importing `name`; `instead` is a sentence."""
    return AbsentError(
        f"{name} is not in shanty's stand-in for Horovod, which has horovod.torch, "
        f"horovod.tensorflow and horovod.keras. {instead} "
        "An installed Horovod takes the place of the stand-in.",
        name=name,
    )


@contextmanager
def needs(name: str, framework: str, install: str) -> Iterator[None]:
    """Around the import of what stands in for `name`.

    framework: what both need, as people write it; its package has that name in lower case.
    Raises ModuleNotFoundError where it is not there, with the words of pip that would `install` it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != framework.lower():
            raise
        text = f"{name} needs {framework}: pip install {install}"
        raise ModuleNotFoundError(text, name=error.name) from None
