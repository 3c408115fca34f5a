"""Horovod for TensorFlow: `import horovod.tensorflow as hvd`."""

# ruff: noqa: F401, F403

from __future__ import annotations

import sys
from typing import Any

from shanty.compat.absent import needs
from shanty.compat.aliases import alias

with needs("horovod.tensorflow", "TensorFlow", "tensorflow"):
    from shanty import tensorflow
    from shanty.compat.horovod.common.util import check_extension, split_list
    from shanty.tensorflow import compression, functions
    from shanty.tensorflow.api import *

from . import mpi_ops, util
from .mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
)
from .util import _executing_eagerly, refs_to_vars, vars_to_refs

alias(__name__, compression=compression, functions=functions)
__all__ = list(tensorflow.__all__)


def __getattr__(name: str) -> Any:
    """Load what loads Keras when it is used."""
    if name == "elastic":  # `from . import elastic` would ask again
        from .elastic import __name__ as loaded
    elif name == "keras":
        from .keras import __name__ as loaded
    elif name == "sync_batch_norm":
        from .sync_batch_norm import __name__ as loaded
    else:
        return getattr(tensorflow, name)
    return sys.modules[loaded]
