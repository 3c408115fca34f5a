"""DistributedGradientTape and PartialDistributedGradientTape. See run_checks.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from checks import raised
from on_tensorflow import both
from references import adasum, close, given, reduced

import shanty.tensorflow as hvd

SHAPES = [(3,), (2, 2), (), (4, 1), (1,)]


def model() -> tuple[list[Any], list[list[Any]], Callable[[], Any]]:
    """Variables, their gradients on each rank, and a loss that has these."""
    variables = [tf.Variable(tf.ones(shape, tf.float64)) for shape in SHAPES]
    slopes = [given(shape, tf.float64, seed=n) for n, shape in enumerate(SHAPES)]

    def loss() -> Any:
        own = [each[hvd.rank()] for each in slopes]
        return tf.add_n(
            [tf.reduce_sum(v * g) for v, g in zip(variables, own, strict=True)],
        )

    return variables, slopes, loss


def taped(
    loss: Callable[[], Any], sources: Any, wrap: Callable[[Any], Any]
) -> list[tuple[str, Any]]:
    def compute() -> Any:
        with wrap(tf.GradientTape()) as tape:
            value = loss()
        return tape.gradient(value, sources)

    def wrapped_later() -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        return wrap(tape).gradient(value, sources)

    found = [(way, attempt()) for way, attempt in both(compute)]
    return [*found, *((f"{way}, later", attempt()) for way, attempt in both(wrapped_later))]


def check_tape() -> None:
    variables, slopes, loss = model()
    for op in (hvd.Average, hvd.Sum, hvd.Max):
        for way, found in taped(
            loss, variables, lambda t, o=op: hvd.DistributedGradientTape(t, op=o)
        ):
            for each, tensors in zip(found, slopes, strict=True):
                close(each, reduced(tensors, op), (way, op.name))


def check_options_of_tape() -> None:
    variables, slopes, loss = model()
    fp16 = {"compression": hvd.Compression.fp16}
    for options, error in (
        ({"gradient_predivide_factor": 3.0}, None),
        ({"groups": 2}, None),
        ({"groups": 9}, None),
        ({"groups": [variables[:2], variables[3:4]]}, None),
        (fp16, 2e-3),
        ({"groups": 2, **fp16, "gradient_predivide_factor": 2.0}, 2e-3),
    ):
        wrap = lambda tape, how=options: hvd.DistributedGradientTape(tape, **how)  # noqa: E731
        for way, found in taped(loss, variables, wrap):
            for each, tensors in zip(found, slopes, strict=True):
                assert each.dtype == tf.float64
                close(each, reduced(tensors, hvd.Average), (way, options), error)
    wrap = lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Adasum)  # noqa: E731
    for way, found in taped(loss, variables, wrap):
        for each, tensors in zip(found, slopes, strict=True):
            close(each, adasum(tensors), way)


def check_structures_of_sources() -> None:
    """What comes back is in the structure of what was asked for."""
    (first, second, *_), slopes, loss = model()
    expected = [reduced(each, hvd.Average) for each in slopes]
    wrap = hvd.DistributedGradientTape
    for _, found in taped(loss, first, wrap):
        close(found, expected[0])
    for _, found in taped(loss, {"b": second, "a": first}, wrap):
        close(found["a"], expected[0])
        close(found["b"], expected[1])
    for _, found in taped(loss, (first, [second]), wrap):
        close(found[0], expected[0])
        close(found[1][0], expected[1])


def check_what_has_no_gradient() -> None:
    variables, slopes, loss = model()
    other = tf.Variable([1.0])
    for way, found in taped(loss, [variables[0], other, variables[1]], hvd.DistributedGradientTape):
        assert found[1] is None, way
        close(found[0], reduced(slopes[0], hvd.Average), way)
        close(found[2], reduced(slopes[1], hvd.Average), way)
    for way, found in taped(loss, [other], hvd.DistributedGradientTape):
        assert found == [None], way
    tape = tf.GradientTape(persistent=True)
    with hvd.DistributedGradientTape(tape) as tape:
        value = loss()
    zero = tf.UnconnectedGradients.ZERO
    found = tape.gradient(value, [other, variables[0]], unconnected_gradients=zero)
    assert found[0].numpy().tolist() == [0.0]
    close(found[1], reduced(slopes[0], hvd.Average))
    weighted = tape.gradient(value, variables[:1], tf.constant(hvd.rank() + 1.0, tf.float64))
    scaled = [each * (rank + 1) for rank, each in enumerate(slopes[0])]
    close(weighted[0], reduced(scaled, hvd.Average))


def embedding() -> tuple[list[Any], Callable[[], Any], np.ndarray[Any, Any]]:
    """A table of which each rank uses other rows, some of them twice; and the mean gradient."""
    table, factor = tf.Variable(tf.ones((5, 2))), tf.Variable(2.0)
    rank, size = hvd.rank(), hvd.size()

    def loss() -> Any:
        rows = tf.nn.embedding_lookup(table, [rank % 5, 4, 4])
        return tf.reduce_sum(rows) * (rank + 1) * factor

    mean = np.zeros((5, 2))
    for each in range(size):
        np.add.at(mean, [each % 5, 4, 4], 2.0 * (each + 1) / size)
    return [table, factor], loss, mean


def check_sparse_gradients() -> None:
    sources, loss, mean = embedding()
    for sparse_as_dense in (False, True):
        for groups in (None, 1, 2, [[sources[0]]]):
            wrap = lambda tape, d=sparse_as_dense, g=groups: hvd.DistributedGradientTape(  # noqa: E731
                tape, sparse_as_dense=d, groups=g
            )
            for way, (rows, factor) in taped(loss, sources, wrap):
                assert isinstance(rows, tf.IndexedSlices) is not sparse_as_dense, way
                close(tf.convert_to_tensor(rows), mean, way)
                close(factor, 6 * (hvd.size() + 1) / 2, way)


def check_local_sources() -> None:
    variables, slopes, loss = model()
    rank, size = hvd.rank(), hvd.size()
    for scale in (True, False):

        def wrap(tape: Any, scale: bool = scale) -> Any:
            made = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
            made.register_local_source(variables[1])
            assert made.scale_local_gradients is scale
            return made

        for way, found in taped(loss, variables, wrap):
            for n, (each, tensors) in enumerate(zip(found, slopes, strict=True)):
                own = tensors[rank] / (size if scale else 1)
                close(each, own if n == 1 else reduced(tensors, hvd.Average), way)
    with wrap(tf.GradientTape()) as tape:
        value = loss()
    local, shared = tape.get_local_and_global_gradients(value, variables)
    ((source, own),) = local
    assert source is variables[1] and len(shared) == len(variables) - 1
    close(own, slopes[1][rank])
    close(shared[0][1], reduced(slopes[0], hvd.Average))


def check_partial_tape() -> None:
    layers = [tf.keras.layers.Dense(2, kernel_initializer="ones") for _ in range(3)]
    x = tf.fill((4, 2), float(hvd.rank() + 1))
    net = tf.keras.Sequential(layers)
    net(x)
    sources = net.trainable_variables

    def gradients(wrap: Callable[[Any], Any]) -> list[Any]:
        with wrap(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(net(x))
        found: list[Any] = tape.gradient(loss, sources)
        return found

    own = gradients(lambda tape: tape)
    mean = gradients(hvd.DistributedGradientTape)
    for local in (layers[1], [layers[1], layers[2]], None):
        names = [] if local is None else local if isinstance(local, list) else [local]
        kept = {id(v) for layer in names for v in layer.trainable_weights}
        wrap = lambda tape, local=local: hvd.PartialDistributedGradientTape(  # noqa: E731
            tape, local_layers=local, scale_local_gradients=False
        )
        for attempt in (gradients, tf.function(gradients)):
            for variable, each, alone, shared in zip(
                sources, attempt(wrap), own, mean, strict=True
            ):
                close(each, alone if id(variable) in kept else shared, variable.name)
    raised(
        ValueError, lambda: hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=3)
    )


def check_tape_of_a_process_set() -> None:
    variables, slopes, loss = model()
    alone = hvd.add_process_set([hvd.size() - 1])
    wrap = lambda tape: hvd.DistributedGradientTape(tape, process_set=alone)  # noqa: E731
    for way, found in taped(loss, variables, wrap):
        for each, tensors in zip(found, slopes, strict=True):
            close(each, tensors[hvd.rank()], way)  # of one rank, or of those that have no part
    assert hvd.remove_process_set(alone)


def check_tape_of_another_kind() -> None:
    """A subclass stays one, with all that it has."""

    class Tape(tf.GradientTape):
        def more(self) -> str:
            return "more"

    tape = hvd.DistributedGradientTape(Tape(persistent=True, watch_accessed_variables=False))
    assert isinstance(tape, Tape) and tape.more() == "more"
    variables, slopes, loss = model()
    with tape:
        tape.watch(variables[0])
        value = loss()
    found = tape.gradient(value, variables)
    assert found[1] is None
    close(found[0], reduced(slopes[0], hvd.Average))


def check_training_in_a_graph() -> None:
    """The steps of SGD with the mean gradient of all rows; the ranks stay the same, to the bit."""
    size, rank = hvd.size(), hvd.rank()
    source = np.random.default_rng(3)
    x, y = source.random((8 * size, 3)), source.random((8 * size, 1))
    w = tf.Variable(np.full((3, 1), float(rank)))
    hvd.broadcast_variables([w], root_rank=0)
    expected = np.zeros((3, 1))

    @tf.function
    def step(rows: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(rows, w) - targets) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(loss, [w])
        w.assign_sub(0.1 * gradient)
        return loss

    mine = slice(8 * rank, 8 * rank + 8)
    for _ in range(20):
        step(tf.constant(x[mine]), tf.constant(y[mine]))
        expected -= 0.1 * 2 * x.T @ (x @ expected - y) / len(x)
    close(w, expected, "", 1e-12)
    every = hvd.allgather_object(w.numpy().tobytes())
    assert len(set(every)) == 1
