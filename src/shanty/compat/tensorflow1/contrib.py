"""`tf.contrib`: its parts are loaded when a script first uses one of them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shanty.compat.tensorflow1.namespace import absent

_PARTS = ("data", "framework", "layers", "learn", "rnn", "training")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        from shanty.compat.tensorflow1 import contrib_parts

        return getattr(contrib_parts, name)
    if name == "keras":
        from shanty.compat.tensorflow1.installed import keras_of_1

        return keras_of_1()
    if name == "slim" and find_spec("tf_slim") is not None:
        return import_module("tf_slim")
    raise AttributeError(absent(f"tf.contrib.{name}"))
