"""TensorFlow 2 reads handwritten digits: a loop of its own around a distributed tape."""

import argparse
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=32, help="images a step, on each process")
parser.add_argument("--steps", type=int, default=600, help="of one process")
parser.add_argument("--lr", type=float, default=0.002, help="of one process")
parser.add_argument("--fp16-allreduce", action="store_true", help="half as much is sent")
args = parser.parse_args()

# Horovod: start it, and take one GPU.
hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
order = np.random.RandomState(0).permutation(len(images))
images = (images[order] / 16.0).reshape(-1, 8, 8, 1).astype(np.float32)
labels = labels[order].astype(np.int64)
dataset = tf.data.Dataset.from_tensor_slices((images[360:], labels[360:]))
dataset = dataset.repeat().shuffle(1500).batch(args.batch_size)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, [3, 3], padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Conv2D(32, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
# Horovod: a rate for as many processes.
opt = tf.optimizers.Adam(args.lr * hvd.size())
checkpoint = tf.train.Checkpoint(model=model)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: the gradients of all processes.
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    tape = hvd.DistributedGradientTape(tape, compression=compression)

    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905

    # Horovod: the first process's variables for all. That is after the first step, so that the
    # optimizer has made its own by then.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        variables = opt.variables() if callable(opt.variables) else opt.variables
        hvd.broadcast_variables(variables, root_rank=0)

    return loss_value


# Horovod: fewer steps where there are more processes.
for batch, (x, y) in enumerate(dataset.take(args.steps // hvd.size())):
    loss_value = training_step(x, y, batch == 0)
    if batch % 50 == 0 and hvd.local_rank() == 0:
        print(f"Step #{batch}\tLoss: {loss_value:.6f}")

# Horovod: only one process writes.
if hvd.rank() == 0:
    checkpoint.save(os.path.join("checkpoints", "digits"))
    correct = np.argmax(model(images[:360]).numpy(), axis=1) == labels[:360]
    print(f"accuracy {correct.mean():.4f}")
