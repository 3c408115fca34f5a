"""The module `tensorflow` as the script sees it, and how its parts are found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import tensorflow as installed

from shanty.compat.tensorflow1 import mnist
from shanty.compat.tensorflow1.installed import keras_of_1, v1
from shanty.compat.tensorflow1.namespace import Namespace, estimator

_INTERNAL = ("python", "core", "compiler", "tools")  # of TensorFlow's own, one for all
_KERAS_3 = "keras._tf_keras"


class TensorFlow(ModuleType):
    """`tensorflow` for the script: the names of version 1, and of the installed one its place."""

    def __init__(self) -> None:
        super().__init__("tensorflow", v1.__doc__)
        self.__file__ = installed.__file__
        self.__path__ = list(installed.__path__)
        self.__version__ = installed.__version__

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [each for each in dir(self) if not each.startswith("_")]
        found = keras_of_1() if name == "keras" else getattr(v1, name, self)
        if found is not self:
            return found
        if name == "contrib":
            from shanty.compat.tensorflow1 import contrib

            return contrib
        if name == "examples":
            return _EXAMPLES
        if name == "estimator":
            return estimator()
        if name in _INTERNAL:
            return import_module(f"tensorflow.{name}")
        raise AttributeError(f"module 'tensorflow' has no attribute {name!r}, nor had TensorFlow 1")

    def __dir__(self) -> list[str]:
        return sorted({*dir(v1), "contrib", "examples", "estimator"})

    def __reduce__(self) -> tuple[Callable[[], TensorFlow], tuple[()]]:
        return _tensorflow, ()


def keras() -> Any:
    """Return `keras` for the script: that of TensorFlow 1 where Keras 2 is installed."""
    found = keras_of_1()
    return import_module("keras") if found.__name__.startswith(_KERAS_3) else found


def member(parent: Any, name: str) -> Any:
    """Return an attribute of a module, or a module in it; ImportError where there is none."""
    try:
        return getattr(parent, name)
    except AttributeError as error:
        missing = str(error)
    package = getattr(parent, "__name__", "")
    full = f"{package}.{name}"
    if package in sys.modules and parent is not tensorflow:  # whose version 2 would be found
        try:
            return import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:
                raise
    raise ImportError(missing, name=full)


def _tensorflow() -> TensorFlow:
    return tensorflow


_EXAMPLES = Namespace(
    "tf.examples",
    {
        "tutorials": Namespace(
            "tf.examples.tutorials",
            {"mnist": Namespace("tf.examples.tutorials.mnist", {"input_data": mnist})},
        )
    },
)
tensorflow = TensorFlow()
