"""The initializers and the regularizers of `tf.contrib.layers`.

Initializers are TensorFlow's own. Regularizers are functions of weights, which return a loss to
add.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

from shanty.compat.tensorflow1.installed import v1

Regularizer = Callable[[Any], Any]


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: Any = None) -> Any:
    """Return Glorot and Bengio's initializer (2010): the variance is 2 / (fan in + fan out)."""
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


xavier_initializer_conv2d = xavier_initializer


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Any = None,
) -> Any:
    """Return an initializer of the variance `factor` / n, n as `mode`: FAN_IN, FAN_OUT, FAN_AVG.

    The default is that of He and others (2015). Values are uniform, or normal and cut off at two
    standard deviations.
    """
    shape = "uniform" if uniform else "truncated_normal"
    more = {} if dtype is None else {"dtype": dtype}  # the variable's own is taken anyway
    return v1.variance_scaling_initializer(factor, mode.lower(), shape, seed=seed, **more)


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Return the sum of the absolute values, times `scale`; no loss at all with 0."""
    return _scaled(scale, scope or "l1_regularizer", lambda w: v1.reduce_sum(v1.abs(w)))


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Return half of the sum of the squares, times `scale`; no loss at all with 0."""
    return _scaled(scale, scope or "l2_regularizer", v1.nn.l2_loss)


def l1_l2_regularizer(
    scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None
) -> Regularizer:
    """Return both together."""
    both = (l1_regularizer(scale_l1), l2_regularizer(scale_l2))

    def regularize(weights: Any) -> Any:
        with v1.name_scope(scope or "l1_l2_regularizer"):
            losses = [loss for each in both if (loss := each(weights)) is not None]
            return v1.add_n(losses) if losses else None

    return regularize


def _scaled(scale: Any, scope: str, loss: Regularizer) -> Regularizer:
    if isinstance(scale, numbers.Integral):
        raise ValueError(f"scale cannot be an integer: {scale}")
    if scale < 0:
        raise ValueError(f"scale cannot be less than 0: {scale}")

    def regularize(weights: Any) -> Any:
        if scale == 0:
            return None
        with v1.name_scope(scope):
            factor = v1.convert_to_tensor(scale, dtype=weights.dtype.base_dtype)
            return v1.multiply(factor, loss(weights))

    return regularize
