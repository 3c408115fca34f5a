"""Horovod for Keras: `import horovod.keras as hvd`."""

# ruff: noqa: E402, F403 (the first of the imports says what to install)

from importlib import import_module

from shanty.compat.absent import load

keras = load("shanty.keras", "horovod.keras", "Keras", "keras tensorflow")

from shanty.keras.api import *

callbacks = import_module(f"{__name__}.callbacks")
elastic = import_module(f"{__name__}.elastic")

__all__ = list(keras.__all__)
