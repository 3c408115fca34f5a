"""`horovod.tensorflow.keras.callbacks`: what is done around the training of a model."""

from shanty.tensorflow.keras.callbacks import *  # noqa: F403
from shanty.tensorflow.keras.callbacks import __all__ as __all__
