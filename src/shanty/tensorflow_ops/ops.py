"""Horovod's operations on tensors, under its names and with its arguments.

Each works at once or, inside a `tf.function` or a graph, as a part of it. A `name` matches the
calls of all ranks, whatever their order. Calls without a name are matched by their order or, in
graphs, by the names of their tensors. Sizes, types and other properties are compared first: if they
differ, all ranks raise HorovodInternalError. The process set says which ranks take part;
`root_rank` is always a rank of the world. Grouped operations are done as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from shanty.collectives import process_sets, world
from shanty.collectives.arguments import op_of
from shanty.collectives.compression import Compressor, NoneCompressor, compressed
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Op
from shanty.tensorflow_ops import mpi_ops
from shanty.tensorflow_ops.installed import as_written, tf, v1
from shanty.tensorflow_ops.mpi_ops import Tensor

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += ["allgather", "allreduce", "alltoall", "broadcast", "broadcast_", "reducescatter"]
__all__ += ["grouped_allgather", "grouped_allreduce", "grouped_reducescatter", "join"]
__all__ += ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]

join = as_written(mpi_ops.join)
Average, Sum, Adasum = Op.AVERAGE, Op.SUM, Op.ADASUM
Min, Max, Product = Op.MIN, Op.MAX, Op.PRODUCT


@as_written
def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Tensor:
    """A new tensor: `tensor` combined over the ranks, element by element. Has a gradient.

    tensor: a tensor, a variable, or IndexedSlices, whose rows are gathered from all ranks (with
        Average and Sum only; duplicates stay; an Average of integers has fractions).
    op: Average (the default), Sum, Min, Max, Product or Adasum. An Average of dense integers is
    rounded towards zero. average: true or false for Average or Sum; use `op`.
    compression: how the tensor travels. prescale_factor, postscale_factor: what the elements are
    multiplied with before and after. device_dense, device_sparse: where the graph's operations are.
    Raises ValueError for an op that the type has not, or a process set without this rank.
    """
    how = op_of(op, average), prescale_factor, postscale_factor, process_set
    if isinstance(tensor, tf.IndexedSlices):
        with placed(device_sparse):
            return _gathered([tensor], name, *how, False, ignore_name_scope)[0]
    with placed(device_dense):
        return _smaller(
            mpi_ops.allreduce, compression, [tensor], name, *how, False, ignore_name_scope
        )[0]


@as_written
def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """New tensors: an `allreduce` of each, all of them together. They have gradients."""
    tensors = list(tensors)
    how = op_of(op, average), prescale_factor, postscale_factor, process_set, True
    sparse = [i for i, each in enumerate(tensors) if isinstance(each, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in set(sparse)]
    found = list(tensors)
    if sparse:
        with placed(device_sparse):
            some = [tensors[i] for i in sparse]
            rows = _gathered(some, name and f"{name}.sparse", *how, ignore_name_scope)
        for i, each in zip(sparse, rows, strict=True):
            found[i] = each
    if dense:
        with placed(device_dense):
            some = [tensors[i] for i in dense]
            results = _smaller(mpi_ops.allreduce, compression, some, name, *how, ignore_name_scope)
        for i, each in zip(dense, results, strict=True):
            found[i] = each
    return found


@as_written
def allgather(
    tensor: Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """A new tensor: the rows (dimension 0) of all ranks, in the order of ranks. Has a gradient.

    The ranks may have different numbers of rows, and none.
    """
    return mpi_ops.allgather([tensor], name, process_set, False, ignore_name_scope)[0]


@as_written
def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """New tensors: an `allgather` of each, all of them together. They have gradients."""
    if not tensors:
        return list(tensors)
    return mpi_ops.allgather(tensors, name, process_set, True, ignore_name_scope)


@as_written
def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """A new tensor: that of the rank `root_rank`. Has a gradient.

    Raises ValueError where that rank is not in the process set.
    """
    return mpi_ops.broadcast(tensor, root_rank, name, process_set, ignore_name_scope)


@as_written
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Give the variables the values of the rank `root_rank`, in place; returns these."""
    variables = list(variables)
    values = mpi_ops.broadcast_all(variables, root_rank, name, process_set)
    assigned = [each.assign(value) for each, value in zip(variables, values, strict=True)]
    after = [each.op for each in assigned if not tf.executing_eagerly() and hasattr(each, "op")]
    with tf.control_dependencies(after):
        return [tf.identity(each) for each in values]


@as_written
def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new tensor: the rows (dimension 0) that all ranks have sent to this one, in their order.

    splits: how many rows go to each rank; a list, or a tensor of integers. None: as many to each.
    With splits the result is a pair: the tensor, and how many rows came from each rank. The
    tensor has a gradient.
    Raises ValueError for splits of more rows than the tensor has.
    """
    output, received = mpi_ops.alltoall(tensor, splits, name, process_set, ignore_name_scope)
    return output if splits is None else (output, received)


@as_written
def reducescatter(
    tensor: Tensor,
    device_dense: str = "",
    compression: type[Compressor] = NoneCompressor,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """A new tensor: this rank's rows of what `allreduce` would return. Has a gradient.

    Rows are shared out evenly; what is left over goes to the first ranks, one row each.
    op: Average or Sum; ValueError for another one, for Adasum a NotImplementedError.
    """
    how = Op(op), prescale_factor, postscale_factor, process_set, False, ignore_name_scope
    with placed(device_dense):
        return _smaller(mpi_ops.reducescatter, compression, [tensor], name, *how)[0]


@as_written
def grouped_reducescatter(
    tensors: Sequence[Tensor],
    device_dense: str = "",
    compression: type[Compressor] = NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """New tensors: a `reducescatter` of each, all of them together. They have gradients."""
    if not tensors:
        return list(tensors)
    how = Op(op), prescale_factor, postscale_factor, process_set, True
    with placed(device_dense):
        return _smaller(mpi_ops.reducescatter, compression, tensors, None, *how)


# ---- variables ---------------------------------------------------------------------------------


@as_written
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Give all ranks the values that the variables of the rank `root_rank` have.

    variables: TensorFlow's or Keras's, in the same order and of the same shapes on all ranks.
    inplace: has no effect. Returns None; in a graph, the operation that does it.
    Raises HorovodInternalError, on all ranks, where they differ, and ValueError for a variable
    that has no value yet.
    """
    found = list(variables)
    for each in found:
        if getattr(each, "shape", None) is None or not hasattr(each, "assign"):
            raise ValueError(
                f"broadcast_variables: {getattr(each, 'name', each)!r} is not a variable that "
                "has been built. Call the model once, or model.build(input_shape), before."
            )
    if not found:
        return None if tf.executing_eagerly() else tf.no_op()
    with v1.name_scope("broadcast_variables"):
        values = broadcast_(found, root_rank, "variables", process_set)
    return None if tf.executing_eagerly() else tf.group(values)


@as_written
def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that gives all ranks the global variables of the rank `root_rank`.

    For graphs of TensorFlow 1. RuntimeError where TensorFlow is eager, which has no such variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(v1.global_variables(), root_rank)


# ---- questions, asked when the graph runs ------------------------------------------------------


@as_written
def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """How many ranks a process set has, as a tensor that a graph asks for when it runs."""
    return _asked(lambda: len(_members(process_set_id)), name)


@as_written
def local_size_op(name: str | None = None) -> Tensor:
    """`local_size()`, as a tensor that a graph asks for when it runs."""
    return _asked(world.local_size, name)


@as_written
def rank_op(name: str | None = None) -> Tensor:
    """`rank()`, as a tensor that a graph asks for when it runs."""
    return _asked(world.rank, name)


@as_written
def local_rank_op(name: str | None = None) -> Tensor:
    """`local_rank()`, as a tensor that a graph asks for when it runs."""
    return _asked(world.local_rank, name)


@as_written
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Whether this rank is in a process set: 1 or 0; -1 before `init`, -3 for an unknown set."""

    def answer() -> int:
        found = process_sets.standing
        if found is None:
            return -1
        members = found.ranks.get(process_set_id)
        return -3 if members is None else int(found.topology.rank in members)

    return _asked(answer, name)


def _members(number: int) -> Sequence[int]:
    members = process_sets.current().ranks.get(number)
    if members is None:
        raise ValueError(f"Process set {number} not found.")
    return members


def _asked(answer: Any, name: str | None) -> Tensor:
    if tf.executing_eagerly():
        return tf.constant(answer(), tf.int32)
    asked = tf.numpy_function(lambda: np.int32(answer()), [], tf.int32, name=name)
    asked.set_shape([])
    return asked


# ---- within ------------------------------------------------------------------------------------


@contextmanager
def placed(device: str) -> Iterator[None]:
    """Place operations on a device; "" leaves that to TensorFlow."""
    if not device:
        yield
        return
    with tf.device(device):
        yield


def _smaller(
    call: Any, compression: type[Compressor], tensors: Sequence[Tensor], *how: Any
) -> list[Tensor]:
    given = [tf.convert_to_tensor(each) for each in tensors]
    return compressed(call, compression, given, *how)


def _gathered(
    slices: Sequence[Any],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
    ignore_name_scope: bool,
) -> list[Any]:
    """Return the rows that all ranks have, as IndexedSlices: their sum, or their average."""
    if op not in (Op.AVERAGE, Op.SUM) or prescale != 1 or postscale != 1:
        what = f"hvd.{op.name.title()}" if prescale == postscale == 1 else "a factor"
        raise NotImplementedError(
            f"IndexedSlices cannot be reduced by {what}: pass sparse_as_dense=True to an optimizer "
            "or tape, or tf.convert_to_tensor(slices)."
        )
    parts = [part for each in slices for part in (each.values, each.indices)]
    every = mpi_ops.allgather(parts, name, process_set, True, ignore_name_scope)
    ranks = process_set.size() or 1
    found = []
    for each, values, indices in zip(slices, every[::2], every[1::2], strict=True):
        share = values / tf.cast(ranks, values.dtype) if op is Op.AVERAGE else values
        found.append(tf.IndexedSlices(share, indices, dense_shape=each.dense_shape))
    return found
