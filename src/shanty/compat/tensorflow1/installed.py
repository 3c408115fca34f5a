"""TensorFlow's API of version 1, from the TensorFlow that is installed.

Importing it turns off, for the process, what TensorFlow 2 does otherwise.
"""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow
from tensorflow.python.util import deprecation

v1: Any = tensorflow.compat.v1
# That the script's names are old is known, and each rank would say so.
deprecation._PRINT_DEPRECATION_WARNINGS = False
warnings.filterwarnings("ignore", r"`tf\.(layers|nn\.rnn_cell)\.\w+` is deprecated", UserWarning)
v1.disable_v2_behavior()
