"""What each rank of keras_step.py does: `fit`, or the reduction of a step's gradients by itself.

    keras_step_rank.py shanty|strategy|alone MODEL     steps of `fit`; alone: without other ranks
    keras_step_rank.py reduce|reduce-torch MODEL       the gradients of MODEL

Rank 0 prints one line of JSON: the seconds of every step but the first ones.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

HOW, MODEL = sys.argv[1:3]
WARM, STEPS = 10, 40
BATCH = {"mlp": 32, "cnn": 64}
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["OMP_NUM_THREADS"] = os.environ["TF_NUM_INTRAOP_THREADS"] = "1"


def model(keras: Any) -> Any:
    layers = keras.layers
    if MODEL == "mlp":  # 9.6 million parameters
        sizes = [layers.Dense(2400, activation="relu") for _ in range(2)]
        return keras.Sequential([keras.Input((1024,)), *sizes, layers.Dense(580)])
    first = [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D()]
    second = [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    return keras.Sequential([keras.Input((28, 28, 1)), *first, *second, layers.Dense(10)])


def fit() -> list[float]:
    import numpy as np
    import tensorflow as tf

    shape = (1024,) if MODEL == "mlp" else (28, 28, 1)
    outputs = 580 if MODEL == "mlp" else 10
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH[MODEL], *shape)).astype(np.float32)
    y = random.normal(size=(BATCH[MODEL], outputs)).astype(np.float32)
    times: list[float] = []

    class Clock(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            times.append(time.perf_counter() - self.begun)

    if HOW == "strategy":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            net = model(tf.keras)
            net.compile(tf.keras.optimizers.SGD(1e-4), "mse")
        # Each worker takes a batch of its own, as with shanty.
        data = strategy.distribute_datasets_from_function(lambda _: data_of(tf, x, y))
        net.fit(data, steps_per_epoch=WARM + STEPS, epochs=1, verbose=0, callbacks=[Clock()])
        return times[WARM:]
    net = model(tf.keras)
    optimizer: Any = tf.keras.optimizers.SGD(1e-4)
    callbacks: list[Any] = [Clock()]
    if HOW == "shanty":
        import shanty.tensorflow.keras as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer)
        callbacks.insert(0, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    net.compile(optimizer, "mse")
    net.fit(data_of(tf, x, y), epochs=1, verbose=0, callbacks=callbacks)
    return times[WARM:]


def data_of(tf: Any, x: Any, y: Any) -> Any:
    return tf.data.Dataset.from_tensors((x, y)).cache().repeat(WARM + STEPS)


def shapes() -> list[tuple[int, ...]]:
    if MODEL == "mlp":
        return [(1024, 2400), (2400,), (2400, 2400), (2400,), (2400, 580), (580,)]
    return [(3, 3, 1, 16), (16,), (3, 3, 16, 32), (32,), (800, 10), (10,)]


def reduce() -> list[float]:
    import tensorflow as tf

    import shanty.tensorflow as hvd

    hvd.init()
    gradients = [tf.ones(shape) for shape in shapes()]

    @tf.function
    def step() -> Any:
        return hvd.grouped_allreduce([each + 1.0 for each in gradients], name="gradients")

    @tf.function
    def bare() -> Any:
        return [each + 1.0 for each in gradients]

    return beyond(bare, step)


def reduce_torch() -> list[float]:
    import torch

    import shanty.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    gradients = [torch.ones(shape) for shape in shapes()]

    def bare() -> list[Any]:
        return [each.add(1.0) for each in gradients]

    def step() -> None:
        hvd.grouped_allreduce_(bare(), name="gradients")

    return beyond(bare, step)


def beyond(bare: Callable[[], object], step: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(WARM + 3 * STEPS):
        begun = time.perf_counter()
        bare()
        between = time.perf_counter()
        step()
        end = time.perf_counter()
        times.append(end - between - (between - begun))
    return times[WARM:]


found = {"reduce": reduce, "reduce-torch": reduce_torch}.get(HOW, fit)()
if os.environ.get("RANK", "0") == "0":
    print(json.dumps({"seconds": found}), flush=True)
