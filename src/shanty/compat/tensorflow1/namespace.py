"""Modules of TensorFlow 1 that are made of a few names; the errors for what is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import tensorflow

from shanty.compat.tensorflow1.installed import v1

_ADDONS = "TensorFlow Addons went on with it until 2024"
_INSTEAD = {
    "bayesflow": "TensorFlow Probability is what became of it",
    "cluster_resolver": "there is tf.distribute.cluster_resolver",
    "crf": _ADDONS,
    "data": "there are tf.data and tf.data.experimental",
    "distribute": "there is tf.distribute",
    "distributions": "TensorFlow Probability is what became of it",
    "eager": "there are tf.enable_eager_execution() and the names of tf itself",
    "estimator": "there is tf.estimator, up to TensorFlow 2.15",
    "feature_column": "there is tf.feature_column",
    "framework": "there is tf.train",
    "gan": "TF-GAN is what became of it",
    "image": _ADDONS,
    "layers": "there are tf.layers and tf.keras.layers",
    "learn": "there is tf.estimator, up to TensorFlow 2.15",
    "lite": "there is tf.lite",
    "lookup": "there is tf.lookup",
    "losses": "there is tf.losses",
    "metrics": "there is tf.metrics",
    "opt": _ADDONS,
    "quantize": "TensorFlow Model Optimization is what became of it",
    "rnn": "there are tf.nn.rnn_cell and tf.keras.layers",
    "seq2seq": _ADDONS,
    "slim": "it is found after: pip install tf-slim",
    "summary": "there is tf.compat.v2.summary",
    "tensorboard": "there is tensorboard.plugins.projector",
    "tpu": "there is tf.tpu",
    "training": "there is tf.train",
}


def absent(name: str) -> str:
    """Say that `name`, such as "tf.contrib.crf", is missing, and what replaces it."""
    parts = name.split(".")
    if parts[1] != "contrib":
        return f"{name} ended with TensorFlow 1"
    instead = _INSTEAD.get(parts[2], "")
    more = f": {instead}" if instead else ""
    if len(parts) == 3:
        return f"{name} ended with TensorFlow 1{more}"
    return f"{name} is not in shanty's stand-in for tf.contrib, which ended with TensorFlow 1{more}"


def _absent_estimator(name: str) -> str:
    """Say which TensorFlow has `name`, such as "tf.estimator.Estimator"."""
    return (
        f"{name} is in TensorFlow up to 2.15, and this is {tensorflow.__version__}: with Python "
        "3.11 or older, pip install 'tensorflow<2.16'"
    )


class Namespace(ModuleType):
    """A module of a few `members`.

    find: returns a further member by its name, or None. missing: returns the error text for any
    other name.
    """

    def __init__(
        self,
        name: str,
        members: Mapping[str, Any],
        missing: Callable[[str], str] = absent,
        find: Callable[[str], Any] = lambda _: None,
    ) -> None:
        super().__init__(name)
        self.__dict__.update(members)
        self._missing = missing
        self._find = find

    def __getattr__(self, name: str) -> Any:
        found = self._find(name)
        if found is None:
            raise AttributeError(self._missing(f"{self.__name__}.{name}"))
        return found


class _ModeKeys:
    """`tf.estimator.ModeKeys`, which scripts without an Estimator use too."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_ESTIMATOR = Namespace("tf.estimator", {"ModeKeys": _ModeKeys}, _absent_estimator)


def estimator() -> Any:
    """Return `tf.estimator`, as far as there is one."""
    return getattr(v1, "estimator", _ESTIMATOR)
