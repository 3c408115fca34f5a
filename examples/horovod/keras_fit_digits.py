"""tf.keras reads handwritten digits: model.fit with Horovod's optimizer and callbacks."""

import argparse

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=32, help="images a step, on each process")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--lr", type=float, default=0.002, help="of one process")
args = parser.parse_args()

# Horovod: start it.
hvd.init()

# Horovod: one GPU for each process, by its place on the machine.
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
order = tf.random.Generator.from_seed(0).uniform([len(images)]).numpy().argsort()
images, labels = images[order], labels[order].astype("int64")
train = tf.data.Dataset.from_tensor_slices((images[360:], labels[360:]))
train = train.shuffle(2000, seed=1, reshuffle_each_iteration=True).repeat()
train = train.shard(hvd.size(), hvd.rank()).batch(args.batch_size)
steps = len(images[360:]) // (args.batch_size * hvd.size())

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, [3, 3], padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Conv2D(32, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

# Horovod: a rate for as many processes, and the optimizer around the optimizer.
scaled_lr = args.lr * hvd.size()
opt = tf.keras.optimizers.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"]
)

callbacks = [
    # Horovod: the weights of the first process for all.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: metrics at the end of an epoch are those of all processes.
    hvd.callbacks.MetricAverageCallback(),
    # Horovod: the rate grows in the first epochs.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]
# Horovod: only one process writes.
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.keras"))
verbose = 2 if hvd.rank() == 0 else 0
model.fit(train, steps_per_epoch=steps, callbacks=callbacks, epochs=args.epochs, verbose=verbose)

loss, accuracy = model.evaluate(images[:360], labels[:360], verbose=0)
if hvd.rank() == 0:
    print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")
