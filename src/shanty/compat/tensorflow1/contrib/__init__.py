"""`tf.contrib`: those parts that scripts use and today's TensorFlow can still do."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shanty.compat.tensorflow1 import absent
from shanty.compat.tensorflow1.names import tensorflow

_PARTS = ("data", "framework", "layers", "learn", "rnn", "training")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name == "keras":
        return tensorflow.keras
    if name == "slim" and find_spec("tf_slim") is not None:
        return import_module("tf_slim")
    raise AttributeError(absent.text(f"tf.contrib.{name}"))
