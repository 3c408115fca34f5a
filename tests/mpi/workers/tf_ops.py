"""Horovod's API on TensorFlow, call by call, in one launch: all checks of these modules."""

from __future__ import annotations

import sys
from importlib import import_module

import tf_harness

import shanty.tensorflow as hvd

MODULES = (
    *("tf_reductions", "tf_moves", "tf_gradients", "tf_graphs", "tf_tape", "tf_training"),
    "tf_properties",
)

if __name__ == "__main__":
    hvd.init()
    for module in sys.argv[1:] or MODULES:
        tf_harness.run(import_module(module).CHECKS)
    hvd.shutdown()
