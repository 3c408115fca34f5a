"""`horovod.keras.callbacks`: what is done around the training of a model."""

from shanty.keras.callbacks import *  # noqa: F403
from shanty.keras.callbacks import __all__ as __all__
