"""The TensorFlow that is installed: its names of version 2, and those of version 1 under it.

A script may have the one or the other under the name `tensorflow` (`shanty run --tf1`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tensorflow

tf: Any = tensorflow.compat.v2
v1: Any = tensorflow.compat.v1
