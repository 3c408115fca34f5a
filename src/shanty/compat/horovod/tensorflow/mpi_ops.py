"""`horovod.tensorflow.mpi_ops`: the operations and the questions about the world.

Libraries call the functions that begin with an underscore: they have no compression, and compute a
Sum by default.
"""

# ruff: noqa: F403

from __future__ import annotations

from collections.abc import Sequence

from shanty.collectives.arguments import op_of
from shanty.collectives.process_sets import *
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Op
from shanty.collectives.world import *
from shanty.compat.horovod.common.util import num_rank_is_power_2
from shanty.tensorflow.api import cuda_built as cuda_built
from shanty.tensorflow.api import gpu_available as gpu_available
from shanty.tensorflow.api import init as init
from shanty.tensorflow_ops import mpi_ops
from shanty.tensorflow_ops.mpi_ops import Tensor
from shanty.tensorflow_ops.ops import *
from shanty.tensorflow_ops.ops import Sum

check_num_rank_power_of_2 = num_rank_is_power_2
handle_average_backwards_compatibility = op_of


def _allreduce(
    tensor: Tensor,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """A new tensor: `tensor`, which is dense, combined over the ranks. Has a gradient."""
    how = Op(op), prescale_factor, postscale_factor, process_set, False, ignore_name_scope
    return mpi_ops.allreduce([tensor], name, *how)[0]


def _grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """New tensors: an `_allreduce` of each, all of them together. They have gradients."""
    how = Op(op), prescale_factor, postscale_factor, process_set, True, ignore_name_scope
    return mpi_ops.allreduce(tensors, name, *how) if len(tensors) else []


def _reducescatter(
    tensor: Tensor,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """A new tensor: this rank's rows of what `_allreduce` would return. Has a gradient."""
    how = Op(op), prescale_factor, postscale_factor, process_set, False, ignore_name_scope
    return mpi_ops.reducescatter([tensor], name, *how)[0]


def _grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """New tensors: a `_reducescatter` of each, all of them together. They have gradients."""
    how = Op(op), prescale_factor, postscale_factor, process_set, True, ignore_name_scope
    return mpi_ops.reducescatter(tensors, name, *how) if len(tensors) else []
