"""Importing this keeps the process from loading a framework."""

import sys

BLOCKED = ("torch", "tensorflow", "keras", "jax", "xgboost")
for name in BLOCKED:
    sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails now
