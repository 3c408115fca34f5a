"""TensorFlow 1 reads handwritten digits: an Estimator. `shanty run --tf1`, with TensorFlow 2.15."""

import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf.logging.set_verbosity(tf.logging.WARN)


def cnn_model_fn(features, labels, mode):
    net = tf.reshape(features["x"], [-1, 8, 8, 1])
    net = tf.layers.conv2d(net, filters=16, kernel_size=3, padding="same", activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(net, pool_size=[2, 2], strides=2)
    net = tf.layers.conv2d(net, filters=32, kernel_size=3, activation=tf.nn.relu)
    net = tf.layers.flatten(net)
    logits = tf.layers.dense(net, units=10)
    predictions = {"classes": tf.argmax(input=logits, axis=1)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions)

    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        # Horovod: a rate for as many processes, and the optimizer around the optimizer.
        optimizer = tf.train.MomentumOptimizer(learning_rate=0.02 * hvd.size(), momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)

    metrics = {"accuracy": tf.metrics.accuracy(labels, predictions["classes"])}
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=metrics)


def main(unused_argv):
    # Horovod: start it.
    hvd.init()

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images, labels = (images[order] / 16.0).astype(np.float32), labels[order].astype(np.int32)

    # Horovod: one GPU for each process, by its place on the machine.
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Horovod: only one process writes.
    model_dir = os.path.join(".", "digits_model") if hvd.rank() == 0 else None
    estimator = tf.estimator.Estimator(
        model_fn=cnn_model_fn,
        model_dir=model_dir,
        config=tf.estimator.RunConfig(session_config=config),
    )

    # Horovod: the first process's variables for all.
    bcast_hook = hvd.BroadcastGlobalVariablesHook(0)
    train_input_fn = tf.estimator.inputs.numpy_input_fn(
        x={"x": images[360:]}, y=labels[360:], batch_size=32, num_epochs=None, shuffle=True
    )
    # Horovod: fewer steps where there are more processes.
    estimator.train(input_fn=train_input_fn, steps=600 // hvd.size(), hooks=[bcast_hook])

    eval_input_fn = tf.estimator.inputs.numpy_input_fn(
        x={"x": images[:360]}, y=labels[:360], num_epochs=1, shuffle=False
    )
    results = estimator.evaluate(input_fn=eval_input_fn)
    if hvd.rank() == 0:
        print(f"accuracy {results['accuracy']:.4f}")


if __name__ == "__main__":
    tf.app.run()
