"""Deliberate mistakes after which the run cannot go on. Argument: the name of one of them. The
others than the rank that makes it fail with TensorFlow's error, or shanty's; see
../test_tf_mistakes.py. On 2 ranks.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import tensorflow as tf

import shanty.tensorflow as hvd

LATE = 1  # the rank that makes the mistake


def late() -> bool:
    return hvd.rank() == LATE


w = tf.Variable(tf.ones(3))


@tf.function
def step(x: Any) -> None:
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(w * x)
    (gradient,) = tape.gradient(loss, [w])
    w.assign_sub(gradient)


def skips_a_step() -> None:
    """A rank that computes on; the other says so, and gives up."""
    for number in range(3):
        if number == 2 and late():
            time.sleep(60)
        step(tf.ones(3))


def is_late() -> None:
    """A rank that is late, and no more: nothing is lost."""
    step(tf.ones(3))
    if late():
        time.sleep(5)  # others look about once a second, and tell of it up to two seconds later
    step(tf.ones(3))
    print(f"rank {hvd.rank()} is through", flush=True)


def raises() -> None:
    """A rank whose step fails, of its own operation."""
    step(tf.ones(3))
    if late():
        tf.function(lambda x: (tf.debugging.assert_less(x, 0.0), x)[1])(tf.ones(1))
    step(tf.ones(3))


def differs() -> None:
    """Other shapes, in a graph."""
    tf.function(lambda x: hvd.allreduce(x, name="grad.w"))(tf.ones(3 + late()))


def exits() -> None:
    """A rank whose script ends early, in good order."""
    for _ in range(1 if late() else 2):
        step(tf.ones(3))


if __name__ == "__main__":
    hvd.init()
    globals()[sys.argv[1]]()
