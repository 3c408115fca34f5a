"""The TensorFlow that is installed: its names of version 2, and those of version 1 under it.

A script may have the one or the other under the name `tensorflow` (`shanty run --tf1`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tensorflow

tf: Any = tensorflow.compat.v2
v1: Any = tensorflow.compat.v1

_Call = TypeVar("_Call", bound=Callable[..., Any])


def as_written(call: _Call) -> _Call:
    """The same function, which a `tf.function` calls as it is.

    Otherwise AutoGraph rewrites it and all that it calls for the first step, which takes a second
    or more of each rank.
    """
    made: _Call = tf.autograph.experimental.do_not_convert(call)
    return made
