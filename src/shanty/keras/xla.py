"""Steps of distributed optimizers without XLA on TensorFlow, since it cannot call MPI."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from shanty.collectives.process_sets import current

Distributed = Callable[[Any], bool]
"""Whether the optimizer of a model is a distributed one."""


def switch_off(optimizer: type, distributed: Distributed) -> None:
    """Have the Keras of this optimizer compile no step of such models; that is said once."""
    modules = [each.__module__.split(".") for each in optimizer.__mro__]
    package = next((words[0] for words in modules if words[0] in ("keras", "tf_keras")), "keras")
    _switch_off(package, hasattr(optimizer, "stateless_apply"), distributed)


@functools.cache
def _switch_off(package: str, version_3: bool, distributed: Distributed) -> None:
    try:
        if version_3:
            owner = import_module(f"{package}.src.trainers.trainer").Trainer
        else:
            owner = import_module(f"{package}.src.engine.training").Model
    except ImportError:  # of an older Keras 2
        return
    asked = getattr(owner, "jit_compile", None)
    if not isinstance(asked, property) or asked.fset is None or asked.fget is None:
        return
    read, write = asked.fget, asked.fset

    def jit_compile(model: Any) -> Any:
        wanted = read(model)
        if wanted and distributed(model):
            write(model, False)
            _say()
            return False
        return wanted

    owner.jit_compile = property(jit_compile, write)


@functools.cache
def _say() -> None:
    if current().topology.rank == 0:
        words = "shanty.keras: jit_compile is off: XLA cannot call MPI."
        print(words, file=sys.stderr, flush=True)
