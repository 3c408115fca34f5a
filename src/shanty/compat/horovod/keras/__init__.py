"""Horovod for Keras: `import horovod.keras as hvd`."""

# ruff: noqa: F403

from shanty.compat.absent import needs
from shanty.compat.aliases import alias

with needs("horovod.keras", "Keras", "keras tensorflow"):
    from shanty import keras
    from shanty.keras import *
    from shanty.keras import callbacks, elastic

alias(__name__, callbacks=callbacks, elastic=elastic)
__all__ = list(keras.__all__)
