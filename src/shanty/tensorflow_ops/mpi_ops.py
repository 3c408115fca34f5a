"""The operations on TensorFlow's tensors with the gradients that Horovod gives them.

The gradient of an allreduce is the same allreduce of the gradients. That of allgather and of
broadcast is their AVERAGE over the ranks, of which each takes its part: for a loss that is the
mean of all ranks' losses. That of a reducescatter gathers, times the number of ranks for a Sum.
An alltoall's sends everything back. All of them can be differentiated again.

`ops` has them as scripts call them. What is given as a list comes back as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shanty.collectives import array_calls, process_sets
from shanty.collectives.array_calls import Array
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Op, Request
from shanty.tensorflow_ops.installed import tf
from shanty.tensorflow_ops.steps import Outcome, name_of, run

Tensor = Any


def allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Return the tensors combined over the ranks, all of them together."""
    how = op, prescale, postscale, process_set, grouped
    given = [tf.convert_to_tensor(each) for each in tensors]
    key = name_of(_word("Allreduce", grouped), given, name, ignore_name_scope)

    def prepare(*arrays: Array) -> Request:
        return array_calls.allreduce(arrays, key, *how)

    def forward(*each: Tensor) -> Any:
        results = run(each, prepare, [Outcome(one.dtype, one.shape) for one in each], process_set)
        return results, lambda *back: allreduce(back, _back(name), *how, ignore_name_scope)

    return _listed(tf.custom_gradient(forward)(*given))


def allgather(
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
    grouped: bool,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Return, for each tensor, the rows of all ranks in their order."""
    given = [tf.convert_to_tensor(each) for each in tensors]
    key = name_of(_word("Allgather", grouped), given, name, ignore_name_scope)

    def prepare(*arrays: Array) -> Request:
        return array_calls.allgather(arrays, key, process_set, grouped)

    def forward(*each: Tensor) -> Any:
        results = run(each, prepare, [_rows_of(one) for one in each], process_set)
        rows = [tf.shape(one)[0] for one in each]

        def back(*gradients: Tensor) -> list[Tensor]:
            how = Op.AVERAGE, 1.0, 1.0, process_set, grouped, ignore_name_scope
            averages = allreduce(gradients, _back(name), *how)
            counted = _back(name and f"{name}.rows")
            (every,) = allgather([tf.stack([rows])], counted, process_set, False)
            place = process_set.rank()
            with tf.control_dependencies([every]):  # of which rank 0 needs no element
                starts = tf.unstack(tf.reduce_sum(every[:place], 0), num=len(rows))
            parts = zip(averages, starts, rows, strict=True)
            return [average[start : start + count] for average, start, count in parts]

        return results, back

    return _listed(tf.custom_gradient(forward)(*given))


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Return the tensor of the rank `root_rank`."""
    given = tf.convert_to_tensor(tensor)
    key = name_of("Broadcast", [given], name, ignore_name_scope)

    def prepare(array: Array) -> Request:
        return array_calls.broadcast([array], root_rank, key, process_set)

    def forward(one: Tensor) -> Any:
        (result,) = run([one], prepare, [Outcome(one.dtype, one.shape)], process_set)

        def back(gradient: Tensor) -> Tensor:
            how = Op.AVERAGE, 1.0, 1.0, process_set, False, ignore_name_scope
            (average,) = allreduce([gradient], _back(name), *how)
            is_root = process_sets.current().topology.rank == root_rank
            with tf.control_dependencies([average]):  # all ranks take part, for the root's sake
                return average if is_root else tf.zeros_like(average)

        return result, back

    return tf.custom_gradient(forward)(given)


def broadcast_all(
    tensors: Sequence[Tensor], root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Return the tensors of the rank `root_rank`, sent together. Has no gradient."""
    given = [tf.convert_to_tensor(each) for each in tensors]
    key = name_of("Broadcast", given, name, False)

    def prepare(*arrays: Array) -> Request:
        return array_calls.broadcast(arrays, root_rank, key, process_set)

    return run(given, prepare, [Outcome(one.dtype, one.shape) for one in given], process_set)


def alltoall(
    tensor: Tensor,
    splits: Any,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the rows that all ranks have sent to this one, and how many came from each.

    splits: the rows for each rank, as a tensor or list; None for as many to each.
    """
    given = tf.convert_to_tensor(tensor)
    counts = tf.cast([] if splits is None else splits, tf.int32)
    key = name_of("Alltoall", [given], name, ignore_name_scope)

    def prepare(array: Array, numbers: Array) -> Request:
        return array_calls.alltoall(array, numbers.tolist(), key, process_set)

    def results(request: Request) -> list[Array]:
        return [request.results[0], np.array(request.received_splits, np.int32)]

    def forward(one: Tensor, numbers: Tensor) -> Any:
        outcomes = [_rows_of(one), Outcome(tf.int32, [None])]
        output, received = run([one, numbers], prepare, outcomes, process_set, results)
        rows = tf.shape(one)[0]

        def back(gradient: Tensor, _: Tensor) -> Any:
            sent, _ = alltoall(gradient, received, _back(name), process_set, ignore_name_scope)
            unsent = rows - tf.shape(sent)[0]  # rows that the splits left out
            rest = tf.zeros(tf.concat([[unsent], tf.shape(sent)[1:]], 0), sent.dtype)
            return tf.concat([sent, rest], 0), None

        return (output, received), back

    output, received = tf.custom_gradient(forward)(given, counts)
    return output, received


def reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Return this rank's rows of the tensors combined over the ranks."""
    given = [tf.convert_to_tensor(each) for each in tensors]
    key = name_of(_word("Reducescatter", grouped), given, name, ignore_name_scope)

    def prepare(*arrays: Array) -> Request:
        return array_calls.reducescatter(arrays, key, op, prescale, postscale, process_set, grouped)

    def forward(*each: Tensor) -> Any:
        results = run(each, prepare, [_rows_of(one) for one in each], process_set)

        def back(*gradients: Tensor) -> list[Tensor]:
            ranks = process_set.size() or 1
            factor = prescale * postscale * (ranks if op is Op.SUM else 1)
            scaled = [_scaled(one, factor) for one in gradients]
            return allgather(scaled, _back(name), process_set, grouped, ignore_name_scope)

        return results, back

    return _listed(tf.custom_gradient(forward)(*given))


def join() -> Tensor:
    """Announce that this rank has no more data, and wait until all ranks have done so.

    Until then the rank takes part in allreduces of the others, with zeros. Any other operation of
    theirs raises HorovodInternalError. Returns the rank that joined last.
    """

    def results(request: Request) -> list[Array]:
        return [np.array(request.value, np.int32)]

    (last,) = run([], array_calls.join, [Outcome(tf.int32, [])], global_process_set, results)
    return last


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    if tensor.dtype in (tf.float16, tf.bfloat16):  # which may not know the factor
        return tf.cast(tf.cast(tensor, tf.float32) * factor, tensor.dtype)
    return tensor * tf.cast(factor, tensor.dtype)


def _word(kind: str, grouped: bool) -> str:
    return f"Grouped{kind}" if grouped else kind


def _back(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"


def _rows_of(tensor: Tensor) -> Outcome:
    shape = tensor.shape
    known = shape.rank is not None and shape.rank > 0
    return Outcome(tensor.dtype, tf.TensorShape([None]).concatenate(shape[1:]) if known else None)


def _listed(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, (list, tuple)) else [results]
