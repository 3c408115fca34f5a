"""`tf.contrib.framework`: arg_scope, the global step, checkpoints, nested structures."""

from __future__ import annotations

from typing import Any

from shanty.compat.tensorflow1 import absent
from shanty.compat.tensorflow1.arg_scope import add_arg_scope, arg_scope
from shanty.compat.tensorflow1.installed import v1

nest = v1.nest
_OF_TRAIN = (
    "create_global_step", "get_global_step", "get_or_create_global_step", "list_variables",
    "load_checkpoint", "load_variable",
)  # fmt: skip
__all__ = ["add_arg_scope", "arg_scope", "nest", *_OF_TRAIN]


def __getattr__(name: str) -> Any:
    if name in _OF_TRAIN:
        return getattr(v1.train, name)
    raise AttributeError(absent.text(f"tf.contrib.framework.{name}"))
