"""TensorFlow's API of version 1, from the TensorFlow that is installed.

Importing it turns off, for the process, what TensorFlow 2 does otherwise.
"""

from __future__ import annotations

from typing import Any

import tensorflow
from tensorflow.python.util import deprecation

v1: Any = tensorflow.compat.v1
with deprecation.silence():  # that it is old is known
    v1.disable_v2_behavior()
