"""`tf.contrib.training`: HParams."""

from __future__ import annotations

from typing import Any

from shanty.compat.tensorflow1 import absent
from shanty.compat.tensorflow1.hparams import HParams

__all__ = ["HParams"]


def __getattr__(name: str) -> Any:
    raise AttributeError(absent.text(f"tf.contrib.training.{name}"))
