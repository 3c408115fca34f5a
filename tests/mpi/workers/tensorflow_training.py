"""MultiWorkerMirroredStrategy as its tutorial has it: each worker a shard, one model on all."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 cannot fit a model under this strategy

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
workers = int(os.environ["WORLD_SIZE"])
assert strategy.num_replicas_in_sync == workers
assert strategy.cluster_resolver.task_id == int(os.environ["RANK"])

random = np.random.default_rng(0)
inputs = random.normal(size=(64, 8)).astype(np.float32)
targets = (inputs @ random.normal(size=(8, 1))).astype(np.float32)
data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(64)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer=tf.keras.optimizers.legacy.SGD(0.1), loss="mse")
model.fit(data.with_options(options), epochs=5, verbose=0)

reference = np.zeros((8, 1), np.float32)
bias = np.zeros(1, np.float32)
for _ in range(5):
    error = inputs @ reference + bias - targets
    reference -= 0.1 * 2 * inputs.T @ error / len(inputs)
    bias -= 0.1 * 2 * error.mean(axis=0)
np.testing.assert_allclose(model.get_weights()[0], reference, atol=1e-4)
print(f"ok {os.environ['RANK']} of {workers}", flush=True)
