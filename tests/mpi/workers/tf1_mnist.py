"""A graph and a MonitoredTrainingSession, as Horovod's first example had them; `ok` at its end.

The argument is a folder with MNIST's files. `layers` as a second one takes tf.layers, which are of
Keras 2, else those of tf.contrib.
"""

import os
import sys

import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

tf.logging.set_verbosity(tf.logging.INFO)
STEPS = 60


def conv_model(images, labels):
    images = tf.reshape(images, [-1, 28, 28, 1])
    with tf.variable_scope("conv_layer1"):
        if "layers" in sys.argv:
            net = tf.layers.conv2d(images, 8, kernel_size=[5, 5], activation=tf.nn.relu)
        else:
            net = tf.contrib.layers.conv2d(images, 8, kernel_size=[5, 5])
        net = tf.nn.max_pool(net, ksize=[1, 4, 4, 1], strides=[1, 4, 4, 1], padding="SAME")
    net = tf.contrib.layers.flatten(net)
    if "layers" in sys.argv:
        net = tf.layers.dropout(net, rate=0.1, training=True)
        logits = tf.layers.dense(net, 10, activation=None)
    else:
        logits = tf.contrib.layers.fully_connected(net, 10, activation_fn=None)
    return tf.argmax(logits, 1), tf.losses.softmax_cross_entropy(labels, logits)


def main(argv):
    mnist = input_data.read_data_sets(argv[1], one_hot=True, validation_size=50)
    assert mnist.train.images.shape[1] == 784
    with tf.name_scope("input"):
        images = tf.placeholder(tf.float32, [None, 784], name="image")
        labels = tf.placeholder(tf.float32, [None, 10], name="label")
    predicted, loss = conv_model(images, labels)
    right = tf.reduce_mean(tf.cast(tf.equal(predicted, tf.argmax(labels, 1)), tf.float32))
    global_step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(0.005).minimize(loss, global_step=global_step)
    hooks = [
        tf.train.StopAtStepHook(last_step=STEPS),
        tf.train.LoggingTensorHook({"step": global_step, "loss": loss}, every_n_iter=20),
    ]
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.gpu_options.visible_device_list = os.environ["LOCAL_RANK"]
    folder = "checkpoints" if os.environ["RANK"] == "0" else None
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=folder, hooks=hooks, config=config
    ) as session:
        while not session.should_stop():
            batch, answers = mnist.train.next_batch(50)
            feed = {images: batch, labels: answers}
            _, share = session.run([train, right], feed_dict=feed)
    print(f"ok {share > 0.8} {mnist.train.epochs_completed > 0}", flush=True)


if __name__ == "__main__":
    tf.app.run()
