"""A module beside the script of TensorFlow 1."""

import tensorflow as tf

assert tf.Session
