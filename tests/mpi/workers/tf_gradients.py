"""What TensorFlow alone has of gradients: of gradients, eagerly and in a graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from on_tensorflow import both
from references import close, given, reduced

import shanty.tensorflow as hvd


def check_second_gradient_of_allreduce() -> None:
    """Of f = sum(w (sum over ranks of x)^3): d/dx = S(3 w y^2), and once more."""
    x, w = given((4,), tf.float64), given((4,), tf.float64, 50)
    y = reduced(x, hvd.Sum)

    def compute(one: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as outer:
            outer.watch(one)
            with tf.GradientTape() as inner:
                inner.watch(one)
                loss = tf.reduce_sum(hvd.allreduce(one, op=hvd.Sum) ** 3 * w[hvd.rank()])
            first = inner.gradient(loss, one)
        return first, outer.gradient(first, one)

    total = reduced(w, hvd.Sum)
    for way, attempt in both(compute):
        first, second = attempt(tf.constant(x[hvd.rank()]))
        close(first, 3 * total * y**2, way)
        # each rank differentiates the sum of its own first gradients: all of them together
        close(second, hvd.size() * 6 * total * y, way)
