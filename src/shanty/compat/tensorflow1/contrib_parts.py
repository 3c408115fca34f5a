"""The parts of `tf.contrib` that scripts use and today's TensorFlow can still do."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from shanty.compat.tensorflow1 import layers as _layers
from shanty.compat.tensorflow1 import mnist, weights
from shanty.compat.tensorflow1.arg_scope import add_arg_scope, arg_scope
from shanty.compat.tensorflow1.hparams import HParams
from shanty.compat.tensorflow1.installed import v1
from shanty.compat.tensorflow1.namespace import Namespace, estimator
from shanty.compat.tensorflow1.optimize_loss import optimize_loss

_LAYERS = (
    "avg_pool2d", "batch_norm", "conv2d", "conv2d_transpose", "convolution2d", "dropout",
    "flatten", "fully_connected", "linear", "max_pool2d", "one_hot_encoding", "relu",
)  # fmt: skip
_WEIGHTS = (
    "l1_l2_regularizer", "l1_regularizer", "l2_regularizer", "variance_scaling_initializer",
    "xavier_initializer", "xavier_initializer_conv2d",
)  # fmt: skip
_OF_TRAIN = (
    "create_global_step", "get_global_step", "get_or_create_global_step", "list_variables",
    "load_checkpoint", "load_variable",
)  # fmt: skip
_CELLS = (
    "BasicLSTMCell", "BasicRNNCell", "DeviceWrapper", "DropoutWrapper", "GRUCell", "LSTMCell",
    "LSTMStateTuple", "MultiRNNCell", "RNNCell", "ResidualWrapper",
)  # fmt: skip
_UNROLLING = ("static_bidirectional_rnn", "static_rnn", "static_state_saving_rnn")


class ModeKeys:
    """`tf.contrib.learn.ModeKeys`: what a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"


def batch_and_drop_remainder(batch_size: int) -> Callable[[Any], Any]:
    """Return a transformation into whole batches of `batch_size`, for `Dataset.apply`."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def _of_data(name: str) -> Any:
    """The transformations of datasets are in tf.data.experimental now."""
    places = (v1.data.experimental, v1.data)
    found = [getattr(place, name) for place in places if hasattr(place, name)]
    return found[0] if found and not name.startswith("_") else None


def _of_rnn(name: str) -> Any:
    if name in _CELLS:
        return getattr(v1.nn.rnn_cell, name)
    return getattr(v1.nn, name) if name in _UNROLLING else None


def _of_learn(name: str) -> Any:
    return estimator().RunConfig if name == "RunConfig" else None


def _these(module: ModuleType | Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


data = Namespace(
    "tf.contrib.data", {"batch_and_drop_remainder": batch_and_drop_remainder}, find=_of_data
)
framework = Namespace(
    "tf.contrib.framework",
    {
        "add_arg_scope": add_arg_scope,
        "arg_scope": arg_scope,
        "nest": v1.nest,
        **_these(v1.train, _OF_TRAIN),
    },
)
layers = Namespace(
    "tf.contrib.layers",
    {
        "optimize_loss": optimize_loss,
        **_these(_layers, _LAYERS),
        **_these(weights, _WEIGHTS),
    },
)
_datasets = Namespace("tf.contrib.learn.datasets", {"mnist": mnist})
_learn = Namespace("tf.contrib.learn.python.learn", {"datasets": _datasets})
learn = Namespace(
    "tf.contrib.learn",
    {
        "ModeKeys": ModeKeys,
        "datasets": _datasets,
        "python": Namespace("tf.contrib.learn.python", {"learn": _learn}),
    },
    find=_of_learn,
)
rnn = Namespace("tf.contrib.rnn", {"__all__": [*_CELLS, *_UNROLLING]}, find=_of_rnn)
training = Namespace("tf.contrib.training", {"HParams": HParams})
