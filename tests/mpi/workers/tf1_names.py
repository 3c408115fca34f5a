"""Imports and names as scripts of TensorFlow 1 have them; the parts named as arguments are there.

`keras`: Keras 2, `estimator`: tf.estimator, `slim`: tf_slim. Prints `ok NAME` for each check.
"""

import importlib
import pickle
import sys

import numpy as np
import tensorflow as tf
import tensorflow.compat.v2 as tf2
import tensorflow.contrib.layers as layers
import tf1_beside
from tensorflow import flags, gfile, logging
from tensorflow.contrib import rnn
from tensorflow.contrib.data import map_and_batch, shuffle_and_repeat
from tensorflow.contrib.framework import get_or_create_global_step, nest
from tensorflow.contrib.learn.python.learn.datasets.mnist import read_data_sets
from tensorflow.examples.tutorials.mnist import input_data
from tensorflow.keras import backend as K
from tensorflow.python.framework import ops

flags.DEFINE_integer("number", 3, "A flag of the script's.")
flags.DEFINE_list("there", [], "The parts that are there.")
FLAGS = tf.app.flags.FLAGS


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def check_version_1():
    assert not tf.executing_eagerly()
    assert tf.placeholder(tf.float32, [2, 3]).shape[0].value == 2
    assert tf.VERSION == tf.__version__ >= "2"
    assert tf.logging is logging and tf.gfile is gfile and gfile.Exists(__file__)
    assert FLAGS.number == 4
    assert tf.Variable(1.0).op.type == "VariableV2"


def check_modules_beside_the_script():
    assert tf1_beside.tf is tf


def check_libraries_see_what_is_installed():
    import a_library

    assert a_library.tf is sys.modules["tensorflow"] is not tf
    assert not hasattr(a_library.tf, "placeholder") and hasattr(a_library.tf, "function")
    assert a_library.Dense.__name__ == "Dense"
    assert importlib.import_module("tensorflow") is a_library.tf


def check_version_2_by_its_own_name():
    assert hasattr(tf2, "function") and not hasattr(tf2, "placeholder")
    assert hasattr(tf.compat.v2, "function") and tf.compat.as_str(b"a") == "a"
    import tensorflow.compat.v1 as tf1

    assert tf1.placeholder is tf.placeholder


def check_inner_modules():
    assert ops.get_default_graph() is tf.get_default_graph()
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.client import device_lib

    assert isinstance(tf.GraphDef(), graph_pb2.GraphDef)
    assert device_lib and tf.python.framework.ops is ops


def check_pickle():
    assert pickle.loads(pickle.dumps(tf)) is tf
    assert pickle.loads(pickle.dumps(tf.train.AdamOptimizer)) is tf.train.AdamOptimizer


def check_star():
    names = {"__name__": "__main__"}
    exec("from tensorflow import *", names)
    assert names["placeholder"] is tf.placeholder


def check_what_is_not_there():
    said = "tf.contrib.crf ended with TensorFlow 1: TensorFlow Addons"
    raises(AttributeError, said, lambda: tf.contrib.crf)
    raises(ImportError, said, lambda: exec("from tensorflow.contrib import crf"))
    raises(ImportError, said, lambda: exec("import tensorflow.contrib.crf.python.ops"))
    said = "tf.contrib.layers.stack is not in shanty's stand-in"
    raises(ImportError, said, lambda: exec("from tensorflow.contrib.layers import stack"))
    raises(AttributeError, "nor had TensorFlow 1", lambda: tf.nothing)
    raises(ImportError, "nor had TensorFlow 1", lambda: exec("from tensorflow import optimizers"))
    raises(ModuleNotFoundError, "no_such_module", lambda: exec("import no_such_module"))


def check_parts():
    said = "up to 2.15"
    if "estimator" in FLAGS.there:
        assert tf.estimator.Estimator and tf.contrib.learn.RunConfig
    else:
        raises(AttributeError, said, lambda: tf.estimator.Estimator)
        raises(ImportError, said, lambda: exec("from tensorflow.estimator import Estimator"))
    assert tf.estimator.ModeKeys.TRAIN == "train"
    if "slim" in FLAGS.there:
        import tensorflow.contrib.slim as slim

        with slim.arg_scope([slim.fully_connected], activation_fn=None):
            assert slim.fully_connected(tf.zeros([2, 3]), 4).shape == (2, 4)
    else:
        raises(ImportError, "tf-slim", lambda: exec("import tensorflow.contrib.slim as slim"))
    if "keras" in FLAGS.there:
        import keras

        assert keras.__version__[0] == tf.keras.__version__[0] == "2"
        assert K.get_session and keras.backend is K and tf.contrib.keras.layers
        assert tf.layers.dense(tf.zeros([2, 3]), 4).shape == (2, 4)
        cell = rnn.MultiRNNCell([rnn.DropoutWrapper(rnn.BasicLSTMCell(4), 0.5), rnn.GRUCell(3)])
        outputs, _ = rnn.static_rnn(cell, [tf.zeros([2, 3])] * 2, dtype=tf.float32)
        assert outputs[-1].shape == (2, 3)
    else:
        raises(AttributeError, "Keras 3", lambda: tf.layers.dense)


def check_layers():
    graph = tf.Graph()
    with graph.as_default(), tf.Session(graph=graph) as session:
        tf.set_random_seed(1)
        images = tf.placeholder(tf.float32, [None, 8, 8, 1])
        labels = tf.placeholder(tf.int64, [None])
        training = tf.placeholder(tf.bool, [])
        normal = {"is_training": training, "decay": 0.5}
        net = layers.conv2d(
            images, 4, [3, 3], normalizer_fn=layers.batch_norm, normalizer_params=normal
        )
        net = layers.flatten(layers.max_pool2d(net, [2, 2]))
        net = layers.dropout(net, 0.9, is_training=training)
        net = layers.fully_connected(net, 8, weights_regularizer=layers.l2_regularizer(1e-4))
        logits = layers.linear(net, 2, scope="logits")
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        loss += tf.losses.get_regularization_loss()
        step = get_or_create_global_step()
        train = layers.optimize_loss(loss, step, 0.01, "Adam", clip_gradients=5.0)
        names = [each.op.name for each in tf.trainable_variables()]
        assert names == [
            "Conv/weights", "Conv/BatchNorm/beta", "fully_connected/weights",
            "fully_connected/biases", "logits/weights", "logits/biases",
        ], names  # fmt: skip
        assert len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)) == 1
        random = np.random.RandomState(0)
        right = random.randint(0, 2, 64)
        feed = {images: random.rand(64, 8, 8, 1), labels: right, training: True}
        feed[images][right == 1, :4] += 1
        session.run(tf.global_variables_initializer())
        first = session.run(loss, feed)
        for _ in range(60):
            session.run(train, feed)
        feed[training] = False
        assert session.run(loss, feed) < first / 3, (first, session.run(loss, feed))
        assert session.run(step) == 60


def check_batch_norm_is_that_of_numpy():
    graph = tf.Graph()
    with graph.as_default(), tf.Session(graph=graph) as session:
        values = np.random.RandomState(0).rand(16, 3).astype(np.float32) * 5
        outputs = layers.batch_norm(tf.constant(values), decay=0.9, updates_collections=None)
        session.run(tf.global_variables_initializer())
        expected = (values - values.mean(0)) / np.sqrt(values.var(0) + 0.001)
        np.testing.assert_allclose(session.run(outputs), expected, atol=1e-4)
        moving = session.run(graph.get_tensor_by_name("BatchNorm/moving_mean:0"))
        np.testing.assert_allclose(moving, 0.1 * values.mean(0), rtol=1e-4)


def check_initializers_and_regularizers():
    graph = tf.Graph()
    with graph.as_default(), tf.Session(graph=graph) as session:
        uniform, normal = layers.xavier_initializer(), layers.xavier_initializer(False)
        scaled = layers.variance_scaling_initializer()
        shape = [300, 500]
        uniform, normal, scaled = session.run([uniform(shape), normal(shape), scaled(shape)])
        assert abs(uniform).max() <= np.sqrt(6 / 800)
        np.testing.assert_allclose(uniform.std(), np.sqrt(2 / 800), rtol=0.02)
        np.testing.assert_allclose(normal.std(), np.sqrt(2 / 800), rtol=0.02)
        np.testing.assert_allclose(scaled.std(), np.sqrt(2 / 300), rtol=0.02)
        weights = tf.constant([1.0, -2.0])
        losses = [layers.l1_regularizer(0.5)(weights), layers.l2_regularizer(0.5)(weights)]
        assert session.run(losses) == [1.5, 1.25]
        assert layers.l2_regularizer(0.0)(weights) is None


def check_transposed_convolution():
    graph = tf.Graph()
    with graph.as_default(), tf.Session(graph=graph) as session:
        images = tf.placeholder(tf.float32, [None, 4, 5, 3])
        one = {"weights_initializer": tf.ones_initializer(), "activation_fn": None}
        same = layers.conv2d_transpose(images, 2, [3, 3], stride=2, **one)
        valid = layers.conv2d_transpose(images, 2, 3, stride=1, padding="VALID", **one)
        assert same.shape.as_list() == [None, 8, 10, 2] and valid.shape.as_list()[1:] == [6, 7, 2]
        session.run(tf.global_variables_initializer())
        values = session.run([same, valid], {images: np.ones([2, 4, 5, 3])})
        assert [each.shape for each in values] == [(2, 8, 10, 2), (2, 6, 7, 2)]
        assert values[1].max() == 27 and values[1].sum() == 2 * 4 * 5 * 3 * 9 * 2
        assert graph.get_tensor_by_name("Conv2d_transpose/weights:0").shape == (3, 3, 2, 3)


def check_arg_scope():
    arg_scope = tf.contrib.framework.arg_scope
    graph = tf.Graph()
    with graph.as_default():
        with arg_scope([layers.fully_connected], activation_fn=None, biases_initializer=None):
            with arg_scope(
                [layers.fully_connected, layers.conv2d], activation_fn=tf.nn.tanh
            ) as kept:
                layers.fully_connected(tf.zeros([2, 3]), 4, scope="inner")
            layers.fully_connected(tf.zeros([2, 3]), 4, scope="outer")
        with arg_scope(kept):
            layers.fully_connected(tf.zeros([2, 3]), 4, scope="again", activation_fn=tf.nn.relu)
        names = [each.op.name for each in tf.trainable_variables()]
        assert names == ["inner/weights", "outer/weights", "again/weights"], names
        kinds = {each.type for each in graph.get_operations()}
        assert {"Tanh", "Relu"} <= kinds, kinds
        raises(ValueError, "takes no arguments", lambda: arg_scope([tf.matmul], a=1).__enter__())


def check_data():
    graph = tf.Graph()
    with graph.as_default(), tf.Session(graph=graph) as session:
        data = tf.data.Dataset.range(10).apply(shuffle_and_repeat(10, 1))
        data = data.apply(map_and_batch(lambda each: each * 2, 5))
        batches = data.make_one_shot_iterator().get_next()
        both = np.concatenate([session.run(batches), session.run(batches)])
        assert sorted(both) == list(range(0, 20, 2))
        whole = tf.data.Dataset.range(5).apply(tf.contrib.data.batch_and_drop_remainder(2))
        assert whole.make_one_shot_iterator().get_next().shape == (2,)


def check_small_parts():
    assert nest.flatten([1, [2, 3]]) == [1, 2, 3]
    assert tf.contrib.training.HParams(rate=0.1).parse("rate=1").rate == 1.0
    assert tf.contrib.learn.ModeKeys.INFER == "infer"
    assert input_data.read_data_sets is read_data_sets
    assert tf.contrib.learn.datasets.mnist.read_data_sets is read_data_sets
    raises(FileNotFoundError, "t10k-labels-idx1-ubyte.gz", lambda: read_data_sets("nowhere"))


def main(argv):
    assert len(argv) == 1
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print(f"ok {name}", flush=True)


if __name__ == "__main__":
    tf.app.run()
