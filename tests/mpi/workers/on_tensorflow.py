"""TensorFlow, as the checks of Horovod's API see it. See framework.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from checks import some

import shanty.tensorflow as hvd

tf.get_logger().setLevel("ERROR")  # graphs are traced often here, on purpose

BOUND = 60.0
REDUCED = EVERY = (
    *("float64", "float32", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64"),
    *("uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
)
WITHOUT_AVERAGE = ("bool", "uint16", "uint32", "uint64")
SAME_ON_ALL = {
    "eager": (tf.errors.FailedPreconditionError,),
    "graph": (hvd.HorovodInternalError, tf.errors.FailedPreconditionError),
}
IN_GRAPHS = (tf.errors.OpError,)

begin, end = hvd.init, hvd.shutdown


def barrier() -> None:
    if hvd.is_initialized():
        hvd.allreduce(tf.zeros(()), name="a.barrier")


def array(values: Any, dtype: Any) -> Any:
    return np.asarray(values).astype(tf.as_dtype(dtype).as_numpy_dtype)


def tensor(values: Any, dtype: Any = None) -> Any:
    return tf.constant(array(values, dtype) if dtype else values)


def plain(value: Any) -> Any:
    """A tensor, a variable or what NumPy knows, as an array."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def wide(value: Any) -> Any:
    found = plain(value)
    return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)


def raw(value: Any) -> bytes:
    return plain(value).tobytes()


sum = tf.reduce_sum


def unreducible() -> list[Any]:
    return [tf.constant(["text"])]


def more_that_needs_init() -> list[Callable[[], object]]:
    variable = tf.Variable(1.0)

    def gradient() -> object:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = variable * 2.0
        return tape.gradient(loss, [variable])

    return [hvd.rank_op, lambda: hvd.broadcast_variables([variable], 0), gradient]


def both(call: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "eager", call
    yield "graph", tf.function(call)


def ways(
    cases: Sequence[tuple[Any, ...]], call: Callable[..., Any], share: int = 7
) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Eagerly for all cases, and for every so many of them in one graph, where all are under way at
    once: for others each day. Tracing one takes 50 ms."""
    for case in cases:
        yield "eager", case, call(*case)
    traced = some(cases, share)
    found = tf.function(lambda: [call(*each) for each in traced])()
    yield from zip(["graph"] * len(traced), traced, found, strict=True)


def forms(name: str) -> list[Callable[..., Any]]:
    return [getattr(hvd, name)]


def grouped(name: str) -> list[tuple[Callable[..., Any], type]]:
    return [(getattr(hvd, name), list)]


def splits_as(splits: list[int]) -> list[tuple[Any, str]]:
    """The same splits as all that is taken for them, and the type of the received ones."""
    tensors = [tf.constant(splits, tf.int32), tf.constant(splits, tf.int64), np.array(splits)]
    return [(each, "int32") for each in (splits, tuple(splits), *tensors)]


def gradients(call: Callable[..., Any], w: Any, *xs: Any) -> list[tuple[str, list[Any]]]:
    """Eagerly, from a graph, and alone in a session, which leaves out what they do not need and has
    one thread for all that waits.
    """

    def compute(*tensors: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = tf.reduce_sum(call(*tensors) * w)
        found: list[Any] = tape.gradient(loss, list(tensors))
        return found

    v1 = tf.compat.v1
    found = [(way, attempt(*map(tf.constant, xs))) for way, attempt in both(compute)]
    threads = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default(), v1.Session(config=threads) as session:
        fetched = session.run(compute(*map(tf.constant, xs)))
    return [*found, ("session", fetched)]
