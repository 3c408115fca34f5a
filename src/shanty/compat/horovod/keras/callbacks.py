"""`horovod.keras.callbacks`: what is done around the training of a model."""

# ruff: noqa: F403

from shanty.keras.callbacks import *
