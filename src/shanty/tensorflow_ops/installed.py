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
    or more of each rank. It leaves functions with this attribute alone; `do_not_convert` of its own
    would also turn it off for functions of the user's that are called in this one.
    """
    vars(call)["autograph_info__"] = {}
    return call
