"""Stands in for TensorFlow 1: its names, over the TensorFlow that is installed.

A run with `--tf1` gives it to the script, and to no library (`runtime/rank/tensorflow1.py`). It is
`tf.compat.v1` with what TensorFlow 2 does otherwise turned off, and with those parts of
`tf.contrib` that scripts use and today's TensorFlow can still do.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

__all__ = ["imported"]


def imported(name: str, wanted: tuple[str, ...]) -> Any:
    """Return what `import name`, or with names `wanted` `from name import …`, is to return.

    `name` is `tensorflow`, `keras` or what is in them. ImportError says what replaces a missing
    part.
    """
    top, *parts = name.split(".")
    if top == "keras" and find_spec("tensorflow") is None:  # it may have another backend
        return importlib.__import__(name, fromlist=wanted)
    from shanty.compat.tensorflow1 import names

    base = names.tensorflow if top == "tensorflow" else names.keras()
    found = base
    for part in parts:
        found = names.member(found, part)
    if not wanted:
        return base
    for each in wanted:
        if each != "*":
            names.member(found, each)
    return found
