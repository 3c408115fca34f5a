"""`horovod.tensorflow.keras.elastic`: training that goes back to its last commit."""

# ruff: noqa: F403

from shanty.tensorflow.keras.elastic import *
