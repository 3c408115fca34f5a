"""`horovod.tensorflow.data` is not here: importing it raises an error that says what to use."""

from shanty.compat.absent import absent

raise absent(
    "horovod.tensorflow.data",
    "tf.data.experimental.service of TensorFlow has the servers that it starts.",
)
