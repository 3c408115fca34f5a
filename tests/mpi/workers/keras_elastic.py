"""A training as Horovod's documentation writes it for Keras: `fit` with a state that is committed.

Arguments: the epoch in which rank 1 is killed (0: never). Rank 0 prints where it began and, at the
end, the accuracy and a hash of the weights.
"""

import hashlib
import os
import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

EPOCHS = 8
kill_at = 0 if os.environ.get("UNHARMED") else int(sys.argv[1])

hvd.init()
tf.keras.utils.set_random_seed(1 + hvd.rank())  # the state makes them the same
images, labels = load_digits(return_X_y=True)
images, labels = (images[:1792] / 16).astype("float32"), labels[:1792]
mine = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

model = tf.keras.Sequential(
    [tf.keras.layers.InputLayer((64,)), tf.keras.layers.Dense(10, activation="softmax")]
)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01))
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])


class Kill(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if kill_at and state.epoch == kill_at and batch == 3 and hvd.rank() == 1:
            os._exit(9)


@hvd.elastic.run
def train(state):
    if hvd.rank() == 0:
        print("begins at", state.epoch, int(state.model.optimizer.iterations), flush=True)
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=1000),
        Kill(),
    ]
    state.model.fit(
        *mine,
        batch_size=64,
        shuffle=False,
        epochs=EPOCHS - state.epoch,
        callbacks=callbacks,
        verbose=0,
    )
    return "trained"


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
assert train(state) == "trained"
weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
same = np.asarray(hvd.allgather(weights[None]))
assert np.array_equal(same[0], same[-1])
if hvd.rank() == 0:
    accuracy = model.evaluate(images, labels, verbose=0)[1]
    print(f"accuracy {accuracy:.4f}", flush=True)
    print("ends with", hashlib.sha256(weights.tobytes()).hexdigest(), flush=True)
hvd.shutdown()
