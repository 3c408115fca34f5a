"""`tf.contrib.learn`: the MNIST reader, ModeKeys, and RunConfig where tf.estimator has it."""

from __future__ import annotations

from typing import Any

from shanty.compat.tensorflow1 import absent
from shanty.compat.tensorflow1 import mnist as _mnist
from shanty.compat.tensorflow1.names import Namespace, tensorflow


class ModeKeys:
    """What a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"


datasets = Namespace("tf.contrib.learn.datasets", {"mnist": _mnist})
python = Namespace(
    "tf.contrib.learn.python",
    {"learn": Namespace("tf.contrib.learn.python.learn", {"datasets": datasets})},
)


def __getattr__(name: str) -> Any:
    if name == "RunConfig":
        return tensorflow.estimator.RunConfig
    raise AttributeError(absent.text(f"tf.contrib.learn.{name}"))
