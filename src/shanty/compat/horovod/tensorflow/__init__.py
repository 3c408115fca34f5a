"""Horovod for TensorFlow: `import horovod.tensorflow as hvd`."""

# ruff: noqa: E402, F403 (the first of the imports says what to install)

from __future__ import annotations

from importlib import import_module
from typing import Any

from shanty.compat.absent import load

tensorflow = load("shanty.tensorflow", "horovod.tensorflow", "TensorFlow", "tensorflow")

from shanty.compat.horovod.common.util import check_extension as check_extension
from shanty.compat.horovod.common.util import split_list as split_list
from shanty.tensorflow.api import *

_LATER = ("elastic", "keras", "sync_batch_norm")  # they load Keras
_HELPERS = {
    "mpi_ops": "_allreduce _grouped_allreduce _grouped_reducescatter _reducescatter "
    "check_num_rank_power_of_2 handle_average_backwards_compatibility",
    "util": "_executing_eagerly refs_to_vars vars_to_refs",
}

__all__ = list(tensorflow.__all__)
for _part in ("compression", "functions", "mpi_ops", "util"):
    _module = import_module(f"{__name__}.{_part}")  # hvd.mpi_ops and its like need no import
    globals().update({name: vars(_module)[name] for name in _HELPERS.get(_part, "").split()})


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return import_module(f"{__name__}.{name}")
    return getattr(tensorflow, name)
