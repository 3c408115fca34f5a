"""`horovod.tensorflow` is not here: importing it raises an error that says what to use instead."""

from shanty.compat.absent import absent

raise absent("horovod.tensorflow", "For TensorFlow there is tf.distribute.")
