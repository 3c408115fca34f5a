"""Deliberate mistakes in training by `fit`. Arguments: the name of one of them, and
how many ranks see an error; each of them prints `rank R: S s: TYPE: MESSAGE` in one line. Run on 2
ranks, through ../test_keras.py.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from checks import tell
from on_keras import Model, cross_entropy, digits, hvd, keras, line

LATE = 1  # the rank that makes the mistake


def classifier(units: int = 10) -> Model:
    model = keras.Sequential([keras.layers.InputLayer((64,)), keras.layers.Dense(units)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss=cross_entropy())
    return model


def fit(model: Model, steps: int = 4, *callbacks: Any) -> None:
    x, y = digits()
    model.fit(
        x[: steps * 32], y[: steps * 32], batch_size=32, epochs=2, verbose=0, callbacks=[*callbacks]
    )


def other_model() -> None:
    """A rank whose model has another shape."""
    fit(classifier(12 if hvd.rank() == LATE else 10))


def other_model_at_the_broadcast() -> None:
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(classifier(12 if hvd.rank() == LATE else 10), 4, broadcast)


def fewer_steps() -> None:
    """A rank that has fewer steps in an epoch: at the end of the other's epochs it is elsewhere."""
    fit(classifier(), 3 if hvd.rank() == LATE else 4)
    if hvd.rank() == LATE:
        time.sleep(60)  # as who does something else


def raises() -> None:
    """A rank whose callback fails."""

    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if hvd.rank() == LATE and batch == 2:
                raise ArithmeticError("deliberate")

    fit(classifier(), 4, Fails())


def not_built() -> None:
    model = keras.Sequential([keras.layers.Dense(10)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    hvd.elastic.KerasState(model, batch=0, epoch=0)


def passes_after_it_was_built() -> None:
    plain = keras.optimizers.SGD(0.1)
    model = line(plain)
    model.train_on_batch(np.ones((1, 4), "float32"), np.zeros((1, 1), "float32"))
    hvd.DistributedOptimizer(plain, backward_passes_per_step=2)


if __name__ == "__main__":
    hvd.init()
    keras.utils.set_random_seed(1)
    mistake = globals()[sys.argv[1]]
    if "RAISED" in os.environ:
        mistake()
    else:
        tell(mistake, Exception, int(sys.argv[2]))
