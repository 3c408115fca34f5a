"""Training by `fit` on real digits: every loss is that of one process with batches as large as
those of all ranks together. Run on 2 ranks, through ../test_keras.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from on_keras import (
    ON_TENSORFLOW,
    Model,
    cross_entropy,
    digits,
    hvd,
    keras,
    part,
    same_everywhere,
    value,
    weights,
)

BATCH, EPOCHS = 256, 4  # 7 steps an epoch
STEPS = 1792 // BATCH
layers = keras.layers


def mlp() -> Model:
    return keras.Sequential(
        [layers.InputLayer((64,)), layers.Dense(48, activation="relu"), layers.Dense(10)]
    )


def mlp_built_late() -> Model:
    return keras.Sequential([layers.Dense(48, activation="relu"), layers.Dense(10)])


def cnn() -> Model:
    return keras.Sequential(
        [
            layers.InputLayer((64,)),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


class Losses(keras.callbacks.Callback):  # type: ignore[misc]
    """Those of each step. What Keras tells is the mean of the epoch so far."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []
        self._sum = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        before = self._sum if batch else 0.0
        self._sum = logs["loss"] * (batch + 1)
        self.found.append(self._sum - before)


def train(model: Model, optimizer: Any, x: Any, y: Any, batch: int, *callbacks: Any) -> Any:
    losses = Losses()
    model.compile(optimizer=optimizer, loss=cross_entropy(), metrics=["accuracy"])
    model.fit(
        x, y, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0,
        callbacks=[*callbacks, losses],
    )  # fmt: skip
    return np.array(losses.found)


def as_one_process(build: Any, optimizer: Any, least: float, **options: Any) -> Model:
    """Train on all ranks, which begin with other weights, and on one."""
    x, y = digits()
    keras.utils.set_random_seed(1)
    single = build()
    alone = train(single, optimizer(), x, y, BATCH)
    keras.utils.set_random_seed(1 + hvd.rank())
    model = build()
    begun = weights(model) if model.built else np.zeros(1)
    assert same_everywhere(begun) == (not model.built)
    made = hvd.DistributedOptimizer(optimizer(), **options)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    share = BATCH // hvd.size()
    mine = train(model, made, part(x, BATCH), part(y, BATCH), share, broadcast)
    losses = np.asarray(hvd.allreduce(mine, name="losses"))
    assert len(losses) == EPOCHS * STEPS
    assert np.abs(losses - alone).max() < 1e-5, np.abs(losses - alone)
    assert same_everywhere(weights(model))
    assert all(map(same_everywhere, map(value, optimizer_variables(model))))
    _, accuracy = model.evaluate(x, y, verbose=0)
    assert accuracy > least, accuracy
    if hvd.rank() == 0:
        print(f"   accuracy {accuracy:.4f}, losses differ by {np.abs(losses - alone).max():.1e}")
    return model


def optimizer_variables(model: Model) -> list[Any]:
    found = model.optimizer.variables
    return list(found() if callable(found) else found)


def check_sgd_with_momentum() -> None:
    as_one_process(mlp, lambda: keras.optimizers.SGD(0.1, momentum=0.9), 0.8)


def check_adam() -> None:
    as_one_process(mlp, lambda: keras.optimizers.Adam(1e-2), 0.9)


def check_adam_with_clipped_gradients() -> None:
    """They are clipped after they were reduced, as in one process."""
    as_one_process(mlp, lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.1), 0.8)


def check_cnn() -> None:
    as_one_process(cnn, lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), 0.8)


def check_groups_and_predivide() -> None:
    options = {"groups": 2, "gradient_predivide_factor": 2.0}
    as_one_process(mlp, lambda: keras.optimizers.Adam(1e-2), 0.9, **options)


def check_a_model_that_is_built_late() -> None:
    """JAX and PyTorch build it before the first batch; TensorFlow amid it: ranks are alike then."""
    optimizer = keras.optimizers.Adam(1e-2)
    if not ON_TENSORFLOW:
        as_one_process(mlp_built_late, lambda: keras.optimizers.Adam(1e-2), 0.9)
        return
    x, y = digits()
    keras.utils.set_random_seed(1 + hvd.rank())
    model = mlp_built_late()
    made = hvd.DistributedOptimizer(optimizer)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    train(model, made, part(x, BATCH), part(y, BATCH), BATCH // hvd.size(), broadcast)
    assert same_everywhere(weights(model))
    assert all(map(same_everywhere, map(value, optimizer_variables(model))))
    assert model.evaluate(x, y, verbose=0)[1] > 0.9


def check_local_variables() -> None:
    """They stay each rank's own, and get its own gradients."""
    x, y = digits()
    keras.utils.set_random_seed(1 + hvd.rank())
    model = mlp()
    own = model.layers[-1]
    made = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=own)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own.weights[0])
    broadcast.register_local_var(own.weights[1])
    train(model, made, part(x, BATCH), part(y, BATCH), BATCH // hvd.size(), broadcast)
    assert all(same_everywhere(each) for each in model.layers[-2].get_weights())
    assert not any(same_everywhere(each) for each in own.get_weights())
