"""The initializers of `tf.contrib.layers`, by TensorFlow's own."""

from __future__ import annotations

from typing import Any

from shanty.compat.tensorflow1.installed import v1


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

    As it is by default, it is that of He and others (2015). Values are uniform, or normal and cut
    off at two standard deviations.
    """
    shape = "uniform" if uniform else "truncated_normal"
    more = {} if dtype is None else {"dtype": dtype}  # the variable's own is taken anyway
    return v1.variance_scaling_initializer(factor, mode.lower(), shape, seed=seed, **more)
