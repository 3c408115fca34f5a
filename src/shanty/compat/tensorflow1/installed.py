"""TensorFlow's API of version 1, from the TensorFlow that is installed.

Importing it turns off, for the process, what TensorFlow 2 does otherwise.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any

import tensorflow
from tensorflow.python.util import deprecation

v1: Any = tensorflow.compat.v1
# That the script's names are old is known, and each rank would say so.
deprecation._PRINT_DEPRECATION_WARNINGS = False
warnings.filterwarnings("ignore", r"`tf\.(layers|nn\.rnn_cell)\.\w+` is deprecated", UserWarning)
v1.disable_v2_behavior()


def keras_of_1() -> Any:
    """Return tf.compat.v1.keras, loaded, with the version that it lacks."""
    found = v1.keras
    found.layers  # noqa: B018  only then is it known which one it is
    found = sys.modules.get(found.__name__, found)
    if not hasattr(found, "__version__"):
        found.__version__ = import_module(found.__name__.partition(".")[0]).__version__
    return found
