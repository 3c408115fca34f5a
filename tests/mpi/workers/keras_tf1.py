"""Keras in a graph of TensorFlow 1, as people have it: `shanty run --tf1`."""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
tf.keras.backend.set_session(tf.Session(config=config))
tf.set_random_seed(1 + hvd.rank())

images, labels = load_digits(return_X_y=True)
images, labels = (images[:1792] / 16).astype("float32"), labels[:1792]
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(48, activation="relu", input_shape=(64,)),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
rate = 0.05 * hvd.size()
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(rate, momentum=0.9))
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    images[hvd.rank() :: hvd.size()],
    labels[hvd.rank() :: hvd.size()],
    batch_size=32,
    epochs=8,
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2, verbose=1),
    ],
)
weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
assert np.array_equal(hvd.broadcast(weights, 0), weights)
accuracy = model.evaluate(images, labels, verbose=0)[1]
print("ok", accuracy > 0.9, flush=True)
