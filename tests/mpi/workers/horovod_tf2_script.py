"""A script for Horovod on TensorFlow 2, and what libraries take of its modules."""

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras.callbacks import MetricAverageCallback
from horovod.tensorflow.mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    rank_op,
    size,
)
from horovod.tensorflow.util import refs_to_vars, vars_to_refs

hvd.init()
tf.random.set_seed(hvd.rank())
ones = tf.ones([4]) * (hvd.rank() + 1)
total = sum(range(1, size() + 1))

# What begins with an underscore sums, and does not compress.
assert _allreduce(ones).numpy().tolist() == [total] * 4
assert [each.numpy()[0] for each in _grouped_allreduce([ones, ones], op=hvd.Max)] == [size()] * 2
assert _grouped_allreduce([]) == _grouped_reducescatter([]) == []
mine = _reducescatter(ones).numpy().tolist()
assert set(mine) == {total}
assert _grouped_reducescatter([ones])[0].numpy().tolist() == mine
assert hvd.mpi_ops.check_num_rank_power_of_2(size()) == (size() in (1, 2, 4))
assert hvd.handle_average_backwards_compatibility(None, None) == hvd.Average
assert int(rank_op()) == hvd.rank()
variables = [tf.Variable(1.0), tf.Variable(2.0)]
assert refs_to_vars(vars_to_refs(variables))[1] is variables[1]

x = np.random.RandomState(hvd.rank()).randn(64, 4).astype("float32")
y = x.sum(1, keepdims=True)
model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape, compression=Compression.fp16)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@hvd.elastic.run
def train(state):
    first = step()
    while state.batch < 20:
        loss = step()
        state.batch += 1
    state.commit()
    return bool(loss < first)


better = train(state)
hvd.broadcast_variables(model.variables, root_rank=0)

model.compile(hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
history = model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks).history["loss"]
all_of_them = hvd.allgather_object((model.get_weights()[0].tolist(), history))
print("better", better, "the same", all(each == all_of_them[0] for each in all_of_them))
