"""Keras 3 on JAX: `keras.distribution` without a word about the ranks, and what was learned."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

keras.distribution.initialize()

import jax  # noqa: E402

size, rank = jax.process_count(), jax.process_index()
assert len(keras.distribution.list_devices()) == size
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(3)
random = np.random.default_rng(0)
inputs = random.normal(size=(64, 8)).astype(np.float32)
targets = (inputs @ random.normal(size=(8, 1))).astype(np.float32)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
model.fit(
    inputs[rank::size], targets[rank::size],
    batch_size=64 // size, epochs=5, verbose=0, shuffle=False,
)  # fmt: skip
learned = [f"{float(each):.4f}" for each in np.asarray(model.get_weights()[0])[:, 0]]
print(f"{size} ranks learned", *learned, flush=True)
