"""Many steps of a tf.function with a distributed tape: memory stays flat, and no thread, file or
request is left. Argument: the number of steps. Run through ../test_long.py.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import tensorflow as tf
from checks import raised
from steady import Steady

import shanty.tensorflow as hvd

STEPS = int(sys.argv[1])
CHECK_BOUND = 550.0  # seconds, for ten thousand steps
WARM = STEPS // 5  # steps after which everything that stays is there
GROWTH = 2 << 20  # bytes that resident memory may grow by afterwards


def check_steps() -> None:
    weights = [tf.Variable(tf.ones((64, 64)) / 64), tf.Variable(tf.ones((64, 1)))]
    batch = tf.random.stateless_normal((8, 64), [1, hvd.rank()])

    @tf.function
    def step(x: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((tf.nn.relu(x @ weights[0]) @ weights[1]) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-3 * gradient)
        return hvd.allreduce(loss, name="loss")

    for number in range(STEPS):
        if number % 500 == 0:
            gc.collect()  # of so many objects it takes its time to do so by itself
        if number == WARM:
            steady = Steady("RssAnon")  # the pages of shared segments are taken one by one
        step(batch)
        if number % 10 == 0:
            hvd.allreduce(tf.ones(900, tf.bfloat16), name=f"new.{number}")
            hvd.allgather(tf.ones((hvd.rank() + 1, 2)))
            # in a graph, TensorFlow itself would keep a list of each failure
            raised(ValueError, lambda: hvd.alltoall(batch, splits=[99] * hvd.size()))
    steady.check(GROWTH)
    sums = [each.numpy().tobytes() for each in weights]
    assert all(each == sums for each in hvd.allgather_object(sums)), "the models have parted"
