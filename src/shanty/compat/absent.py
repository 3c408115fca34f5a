"""What of Horovod is not in this package, and what to use instead."""

from __future__ import annotations


class AbsentError(ImportError):
    """A part of Horovod that this stand-in does not have."""


def absent(name: str, instead: str) -> AbsentError:
    """The error of importing `name`; `instead` is a sentence."""
    return AbsentError(
        f"{name} is not in shanty's stand-in for Horovod, which has horovod.torch. {instead} "
        "An installed Horovod takes the place of the stand-in.",
        name=name,
    )
