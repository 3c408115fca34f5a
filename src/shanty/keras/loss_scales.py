"""Loss scales that are the same on all ranks, with `mixed_float16` on Keras 3.

Its LossScaleOptimizer skips a step whose gradients are not finite, before the inner optimizer has
reduced them. If one rank skips a step, all ranks must skip it: otherwise they would wait for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from shanty.collectives import array_calls
from shanty.collectives.array_calls import Array
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Op, Request
from shanty.keras import backends

Held = Callable[[Any], Any]
"""The distribution of an optimizer, if it has one."""


@functools.cache
def agree(held: Held) -> None:
    """Have every LossScaleOptimizer around a distributed optimizer ask the other ranks."""
    owner = import_module("keras.src.optimizers.loss_scale_optimizer").LossScaleOptimizer
    check = owner.check_finite

    def check_finite(optimizer: Any, grads: Any) -> Any:
        finite, its = check(optimizer, grads), held(optimizer)
        return finite if its is None else _everywhere(finite, its.how.process_set)

    owner.check_finite = check_finite


def _everywhere(finite: Any, process_set: ProcessSet) -> Any:
    if not process_set.included() or (process_set.size() or 1) == 1:
        return finite

    def prepare(*arrays: Array) -> Request:
        how = Op.MIN, 1.0, 1.0, process_set, False
        return array_calls.allreduce(arrays, "gradients.are.finite", *how)

    (found,) = backends.run([backends.cast(finite, "int32")], prepare, process_set)
    return backends.cast(found, "bool")
