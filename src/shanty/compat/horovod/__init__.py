"""Stands in for Horovod 0.28: its modules, over shanty.torch, shanty.tensorflow and shanty.keras.

`import horovod.torch as hvd` finds it in a run wherever Horovod itself is not installed.
"""

from shanty.compat.starting import run

__version__ = "0.28.1"
__all__ = ["run"]
