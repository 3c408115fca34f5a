"""An Estimator on MNIST's files, as Horovod's example had it; `ok` at its end.

The argument is the folder with the files.
"""

import sys

import numpy as np
import tensorflow as tf

learn = tf.contrib.learn
tf.logging.set_verbosity(tf.logging.INFO)


def model_fn(features, labels, mode):
    net = tf.reshape(features["x"], [-1, 28, 28, 1])
    net = tf.layers.conv2d(net, filters=8, kernel_size=[5, 5], padding="same", activation="relu")
    net = tf.layers.max_pooling2d(inputs=net, pool_size=[4, 4], strides=4)
    net = tf.layers.flatten(net)
    net = tf.layers.dropout(net, rate=0.1, training=mode == tf.estimator.ModeKeys.TRAIN)
    logits = tf.layers.dense(inputs=net, units=10)
    classes = tf.argmax(input=logits, axis=1)
    loss = tf.losses.softmax_cross_entropy(tf.one_hot(labels, 10), logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train = tf.train.AdamOptimizer(0.005).minimize(loss, global_step=step)
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train)
    metrics = {"accuracy": tf.metrics.accuracy(labels=labels, predictions=classes)}
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=metrics)


def main(argv):
    mnist = learn.datasets.mnist.read_data_sets(sys.argv[1], validation_size=0)
    config = tf.estimator.RunConfig(session_config=tf.ConfigProto(), tf_random_seed=1)
    estimator = tf.estimator.Estimator(model_fn=model_fn, model_dir="model", config=config)
    inputs = tf.estimator.inputs.numpy_input_fn
    train = inputs(
        x={"x": mnist.train.images}, y=np.asarray(mnist.train.labels, dtype=np.int32),
        batch_size=50, num_epochs=None, shuffle=True,
    )  # fmt: skip
    test = inputs(
        x={"x": mnist.test.images}, y=np.asarray(mnist.test.labels, dtype=np.int32),
        num_epochs=1, shuffle=False,
    )  # fmt: skip
    estimator.train(input_fn=train, steps=60)
    print("ok", estimator.evaluate(input_fn=test)["accuracy"] > 0.8, flush=True)


if __name__ == "__main__":
    tf.app.run()
