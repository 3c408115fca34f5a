"""The gradients of a step, reduced together: what a tape and an optimizer have in common."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shanty.collectives import process_sets, reduction
from shanty.tensorflow_ops import ops
from shanty.tensorflow_ops.installed import tf

Gradients = list[Any]

_TAPED = "_shanty_taped"  # attribute of variables whose gradients a tape has reduced
_TWICE = (
    "shanty.tensorflow: warning: the gradients are reduced twice, by DistributedGradientTape and "
    "by {}, which takes twice the time and makes a Sum too large. "
    "Wrap the tape or the optimizer, not both."
)


@dataclass
class Reduction(reduction.Reduction):
    """For dense and sparse gradients, at once or in a graph."""

    device_dense: str = ""
    device_sparse: str = ""
    sparse_as_dense: bool = False

    def meet(self, variables: Sequence[Any]) -> None:
        """Warn, once, where a distributed tape has reduced gradients of these variables before."""
        if self.shared and any(hasattr(_inner(each), _TAPED) for each in variables):
            _warn_of_tape(self.name)

    def key_of(self, variable: Any) -> Any:
        """Return a key that identifies a variable or a tensor."""
        inner = _inner(variable)
        return inner.ref() if hasattr(inner, "ref") else id(inner)

    def divided(self, gradient: Any, ranks: int) -> Any:
        """Return a gradient divided by the number of ranks."""
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(ranks, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(ranks, gradient.dtype)

    def reduced(self, name: str, gradients: Sequence[Any]) -> Gradients:
        """Return these gradients, reduced by one operation."""
        if self.sparse_as_dense:
            gradients = [tf.convert_to_tensor(each) for each in gradients]
        return ops.grouped_allreduce(
            gradients,
            device_dense=self.device_dense,
            device_sparse=self.device_sparse,
            compression=self.compression,
            op=self.op,
            prescale_factor=1.0 / self.predivide,
            postscale_factor=self.predivide,
            process_set=self.process_set,
            name=name,
        )


def taped(sources: Sequence[Any]) -> None:
    """Note that a tape has reduced the gradients of these, for `Reduction.meet`."""
    for each in map(_inner, sources):
        if isinstance(each, tf.Variable):
            setattr(each, _TAPED, True)


def _inner(variable: Any) -> Any:
    """Return TensorFlow's variable, which Keras 3 has within its own."""
    found = getattr(variable, "value", None)
    return found if found is not None and not callable(found) else variable


@functools.cache
def _warn_of_tape(name: str) -> None:
    if process_sets.current().topology.rank == 0:
        print(_TWICE.format(name), file=sys.stderr, flush=True)


class Accumulation:
    """Gradients that are added up over several passes, and reduced after the last pass.

    passes: their number. average: whether the sum is divided by that number.
    """

    def __init__(self, how: Reduction, passes: int, average: bool) -> None:
        self._how = how
        self._passes = passes
        self._average = average
        self._count: Any = None
        self._sums: list[Any] = []  # None for a variable without a gradient

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Gradients:
        """Return the gradients to apply if `is_last`; otherwise they have no meaning.

        Raises ValueError for IndexedSlices without `sparse_as_dense`.
        """
        dense = []
        for each in gradients:
            if isinstance(each, tf.IndexedSlices):
                if not self._how.sparse_as_dense:
                    raise ValueError(
                        "IndexedSlices cannot be added up over backward_passes_per_step: pass "
                        "sparse_as_dense=True."
                    )
                each = tf.convert_to_tensor(each)
            dense.append(each)
        self._build(dense)
        # What comes of a branch has no place for None.
        there = [i for i, total in enumerate(self._sums) if total is not None]
        # In a graph of TensorFlow 1 nothing happens that nothing else depends on.
        added = [self._sums[i].assign_add(dense[i]) for i in there]
        with tf.control_dependencies(_operations(added)):
            counted = self._count.assign_add(1)
        with tf.control_dependencies(_operations([counted])):
            some = tf.cond(
                self.is_last(),
                lambda: self._reduced(there, variables),
                lambda: [self._sums[i].read_value() for i in there],
            )
        found = list(dense)
        for i, each in zip(there, some, strict=True):
            found[i] = each
        return found

    def _reduced(self, there: Sequence[int], variables: Sequence[Any]) -> Gradients:
        """Return the reduced sums, and set the sums to zero."""
        sums = [self._sums[i].read_value() for i in there]
        reduced = self._how.reduce(sums, [variables[i] for i in there])
        share = 1 / self._passes if self._average else 1.0
        found = [each * tf.cast(share, each.dtype) for each in reduced]
        with tf.control_dependencies(found):
            emptied = [self._sums[i].assign(tf.zeros_like(self._sums[i])) for i in there]
        with tf.control_dependencies(_operations(emptied)):
            return [tf.identity(each) for each in found]

    def is_last(self) -> Any:
        """Return whether the last pass was one after which gradients are applied, as a tensor."""
        return tf.equal(self._count % self._passes, 0)

    def apply_if_last(self, apply: Callable[[], object], otherwise: Callable[[], object]) -> None:
        """Call the one or the other, in the graph too."""

        def branch(call: Callable[[], object]) -> Callable[[], Any]:
            def run() -> Any:
                call()
                return tf.constant(0)

            return run

        tf.cond(self.is_last(), branch(apply), branch(otherwise))

    def _build(self, gradients: Sequence[Any]) -> None:
        if self._count is not None:
            return
        with tf.init_scope():
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._sums = [
                None
                if each is None
                else tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False)
                for each in gradients
            ]


def _operations(assigned: Sequence[Any]) -> list[Any]:
    """Return what assignments are in a graph, to depend on; nothing where they are done."""
    return [] if tf.executing_eagerly() else [getattr(each, "op", each) for each in assigned]
