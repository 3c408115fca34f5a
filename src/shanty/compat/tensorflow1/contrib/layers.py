"""`tf.contrib.layers`: layers as functions, initializers, regularizers, optimize_loss."""

from __future__ import annotations

from typing import Any

from shanty.compat.tensorflow1 import absent
from shanty.compat.tensorflow1.initializers import (
    variance_scaling_initializer,
    xavier_initializer,
    xavier_initializer_conv2d,
)
from shanty.compat.tensorflow1.layers import (
    avg_pool2d,
    batch_norm,
    conv2d,
    conv2d_transpose,
    convolution2d,
    dropout,
    flatten,
    fully_connected,
    linear,
    max_pool2d,
    one_hot_encoding,
    relu,
)
from shanty.compat.tensorflow1.optimize_loss import optimize_loss
from shanty.compat.tensorflow1.regularizers import (
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
)

__all__ = [
    "avg_pool2d", "batch_norm", "conv2d", "conv2d_transpose", "convolution2d", "dropout",
    "flatten", "fully_connected", "l1_l2_regularizer", "l1_regularizer", "l2_regularizer",
    "linear", "max_pool2d",
    "one_hot_encoding", "optimize_loss", "relu", "variance_scaling_initializer",
    "xavier_initializer", "xavier_initializer_conv2d",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise AttributeError(absent.text(f"tf.contrib.layers.{name}"))
