"""Deliberate mistakes that only TensorFlow's users can make: with tapes, variables and slices. Run
with mistakes.py.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from checks import raised
from framework import differs, ones, refused

import shanty.tensorflow as hvd

v1 = tf.compat.v1


def check_models_that_differ() -> None:
    """A layer that is wider on one rank: the shapes are named."""
    made = {odd: [tf.Variable(ones(3, 1 + odd)), tf.Variable(ones(1 + odd))] for odd in (0, 1)}

    def gradients(odd: bool) -> Any:
        w, b = made[odd]
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(ones(1, 3) @ w + b)
        return tape.gradient(loss, [w, b])

    differs(gradients, "DistributedGradientTape.gradients", "(3, 1)", "(3, 2)")


def check_models_of_other_depth() -> None:
    made = {odd: [tf.Variable(ones(2)) for _ in range(2 + odd)] for odd in (0, 1)}

    def gradients(odd: bool) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(each) for each in made[odd]])
        return tape.gradient(loss, made[odd])

    differs(gradients, "gradients.0")


def check_variables_of_other_shape() -> None:
    def call(odd: bool) -> None:
        hvd.broadcast_variables([made[odd]], root_rank=0)

    made = {odd: tf.Variable(ones(2 + odd)) for odd in (True, False)}
    differs(call, "variables", "(3)", "(2)")


def check_splits() -> None:
    wrong = tf.errors.InvalidArgumentError
    refused(lambda: hvd.alltoall(ones(), splits=[3] * hvd.size()), "split", kinds=wrong)


def check_wrapped_twice() -> None:
    def tape() -> Any:
        return hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))

    refused(tape, "once", kinds=ValueError)

    def optimizer() -> Any:
        return hvd.DistributedOptimizer(
            hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
        )

    refused(optimizer, "once", kinds=ValueError)


def check_options_that_contradict() -> None:
    for options in (
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"groups": 0},
        {"groups": -1},
        {"groups": "all"},
    ):
        word = next(iter(options))
        for call in (
            lambda how=options: hvd.DistributedGradientTape(tf.GradientTape(), **how),
            lambda how=options: hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(0.1), **how
            ),
        ):
            assert word in raised(ValueError, call)


def check_variables_that_are_not_built() -> None:
    layer = tf.keras.layers.Dense(2)
    hvd.broadcast_variables(layer.variables, root_rank=0)  # there are none
    raised(ValueError, lambda: hvd.broadcast_variables([1.0], root_rank=0), "built")
    model = tf.keras.Sequential([layer])
    raised(ValueError, lambda: hvd.elastic.TensorFlowKerasState(model), "built")


def check_slices_without_sparse_as_dense() -> None:
    rows = tf.IndexedSlices(ones(1, 2), tf.constant([0]), tf.constant([3, 2]))
    raised(NotImplementedError, lambda: hvd.allreduce(rows, op=hvd.Adasum), "sparse_as_dense")
