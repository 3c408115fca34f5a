"""A script for Horovod on TensorFlow 1."""

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
x = tf.random_normal([16, 4], seed=hvd.rank() + 1)
w = tf.get_variable("w", [4, 1])
loss = tf.reduce_mean((tf.matmul(x, w) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1 * hvd.size()))
train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=20)]
losses = []
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    while not session.should_stop():
        _, found, weights = session.run([train, loss, w])
        losses.append(found)
every = hvd.allgather_object(weights.tolist())
print("better", bool(losses[-1] < losses[0]), "the same", all(each == every[0] for each in every))
