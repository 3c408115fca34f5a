"""The gradients of a step, reduced together: what tapes and optimizers have in common.

Nothing here knows of a framework. What a backend does with its tensors is in the classes that
derive from `Reduction`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shanty.collectives import gradient_groups
from shanty.collectives.gradient_groups import Groups
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Op


@dataclass
class Reduction:
    """The way to reduce the gradients of one tape or optimizer.

    name: by which the ranks find each other's. predivide: what gradients are divided by before the
    sum, and multiplied by after it. groups: see `gradient_groups`; lists hold variables.
    scale_local: whether the gradients of `local` variables, which stay each rank's own, are
    divided by the number of ranks, as the others are by an average.
    """

    name: str
    compression: Any
    op: Op
    predivide: float
    groups: Groups
    process_set: ProcessSet
    scale_local: bool
    local: set[Hashable] = field(default_factory=set, init=False)

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable alone from now on."""
        self.local.add(self.key_of(variable))

    def is_local(self, variable: Any) -> bool:
        """Return whether the gradient of a variable is left alone."""
        return bool(self.local) and self.key_of(variable) in self.local

    def meet(self, variables: Sequence[Any]) -> None:
        """Look at the variables of a step, before their gradients are reduced."""

    @property
    def shared(self) -> bool:
        """Whether there are other ranks to share with, of which this one is one."""
        return bool(self.process_set.included()) and (self.process_set.size() or 1) > 1

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of all ranks, in place of those of this one. None stays None."""
        found = list(gradients)
        if not self.shared:
            return found
        places = []
        for i, variable in enumerate(variables):
            if found[i] is None:
                continue
            if not self.is_local(variable):
                places.append(i)
            elif self.scale_local:
                found[i] = self.divided(found[i], self.process_set.size() or 1)
        groups = self.groups
        if groups is not None and not isinstance(groups, int):
            groups = [[self.key_of(each) for each in group] for group in groups]
        parts = gradient_groups.split([self.key_of(variables[i]) for i in places], groups)
        for number, part in enumerate(parts):
            some = [places[at] for at in part]
            name = f"{self.name}.gradients.{number}"
            reduced = self.reduced(name, [found[i] for i in some])
            for i, gradient in zip(some, reduced, strict=True):
                found[i] = gradient
        return found

    # ---- for a backend ---------------------------------------------------------------------

    def key_of(self, variable: Any) -> Hashable:
        """Return what tells a variable from others."""
        return id(variable)

    def divided(self, gradient: Any, ranks: int) -> Any:
        """Return a gradient divided by the number of ranks."""
        return gradient / ranks

    def reduced(self, name: str, gradients: Sequence[Any]) -> Sequence[Any]:
        """Return these gradients, reduced by one operation."""
        raise NotImplementedError


class Distributed:
    """The attributes that distributed tapes and optimizers add to the class that they wrap."""

    _reduction: Reduction

    @property
    def process_set(self) -> ProcessSet:
        """The ranks whose gradients are reduced."""
        return self._reduction.process_set

    @property
    def scale_local_gradients(self) -> bool:
        """Whether gradients of local variables are divided by the number of ranks."""
        return self._reduction.scale_local


class DistributedOptimizer(Distributed):
    """The methods that distributed optimizers add to the class that they wrap."""

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable alone: it stays this rank's own."""
        self._reduction.register_local(var)


def variables_of(local_layers: Any) -> list[Any]:
    """Return the trainable variables of a layer, or of several; ValueError for anything else."""
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, Iterable) else [local_layers]
    if not all(hasattr(each, "trainable_weights") for each in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_weights]
