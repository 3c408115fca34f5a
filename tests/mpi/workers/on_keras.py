"""Keras, as its checks see it, and small models for them. See run_checks.py.

KERAS_BACKEND says which backend Keras 3 has. With TF_USE_LEGACY_KERAS, and on TensorFlow 2.15, it
is Keras 2, by `tf.keras` and `shanty.tensorflow.keras`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from os import environ
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
warnings.filterwarnings("ignore", module=r"keras|jax|tensorflow|torch")

keras: Any
if environ.get("TF_USE_LEGACY_KERAS") or "KERAS_BACKEND" not in environ:
    import tensorflow

    keras = tensorflow.keras
    hvd: Any = import_module("shanty.tensorflow.keras")
else:
    keras = import_module("keras")
    hvd = import_module("shanty.keras")
KERAS2 = not hasattr(keras, "ops")
BACKEND = "keras2" if KERAS2 else keras.backend.backend()
ON_TENSORFLOW = BACKEND in ("keras2", "tensorflow")

BOUND = 60.0  # seconds that one check may take, also on a busy machine
Model = Any


def begin() -> None:
    hvd.init()
    keras.utils.set_random_seed(1)


def barrier() -> None:
    hvd.allreduce(np.zeros(1), name="barrier")
    keras.utils.set_random_seed(1)  # for the next check


def end() -> None:
    """Leaving without `shutdown` must not hang."""


def digits() -> tuple[Any, Any]:
    """1792 images of 8 x 8 in some order, in 0 to 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))[:1792]
    return (images[order] / 16).astype("float32"), labels[order].astype("int32")


def part(array: Any, batch: int) -> Any:
    """This rank's, so that its batches and the others' together are the batches of one process."""
    each = batch // hvd.size()
    rows = array.reshape(-1, batch, *array.shape[1:])
    mine = rows[:, hvd.rank() * each : (hvd.rank() + 1) * each]
    return mine.reshape(-1, *array.shape[1:])


def cross_entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def value(variable: Any) -> Any:
    """What a variable holds."""
    inner = getattr(variable, "value", variable)
    inner = variable if callable(inner) else inner
    inner = inner.detach().cpu() if hasattr(inner, "detach") else inner
    return np.array(inner.numpy() if hasattr(inner, "numpy") else inner)


def weights(model: Model) -> Any:
    """All of them in one row."""
    return np.concatenate([np.ravel(each) for each in model.get_weights()])


def same_everywhere(array: Any) -> bool:
    """Whether all ranks have the same."""
    found = np.asarray(hvd.allgather(np.ravel(array)[None]))
    return bool(np.all(found == found[0]))


def mean_output(_: Any, output: Any) -> Any:
    """A loss whose gradient is the input, where the model is one Dense of one unit."""
    if KERAS2:
        return tensorflow.reduce_mean(output)
    return keras.ops.mean(output)


def line(optimizer: Any, wide: int = 4, units: int = 1, **compiled: Any) -> Model:
    """A model whose kernel is 0, and each step's gradient the input of that step."""
    layer = keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.InputLayer(shape(wide)), layer])
    model.compile(optimizer=optimizer, loss=mean_output, **compiled)
    return model


def shape(*sizes: int) -> tuple[int, ...]:
    return sizes


def step(model: Model, gradient: Any) -> Any:
    """Train for one step with this gradient; the kernel after it."""
    row = np.asarray(gradient, "float32")[None]
    model.train_on_batch(row, np.zeros((1, 1), "float32"))
    return value(model.weights[0])[:, 0]
