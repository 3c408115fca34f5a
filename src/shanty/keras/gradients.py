"""The gradients of a step on PyTorch and JAX, reduced together, as an optimizer has it done.

On TensorFlow that is `shanty.tensorflow.gradients`, which knows its sparse gradients and graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shanty.collectives import array_calls, gradient_groups
from shanty.collectives.array_calls import Array
from shanty.collectives.gradient_groups import Groups
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Op, Request
from shanty.keras import backends


class Reducing(Protocol):
    """The way to reduce the gradients of one optimizer, on whatever backend."""

    process_set: ProcessSet
    scale_local: bool

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable alone from now on."""

    def meet(self, variables: Sequence[Any]) -> None:
        """Look at the variables of a step, before their gradients are reduced."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of all ranks, in place of those of this one. None stays None."""


@dataclass
class Reduction:
    """For dense gradients. The fields mean what they do in `shanty.tensorflow.gradients`."""

    name: str
    compression: Any
    op: Op
    predivide: float
    groups: Groups
    process_set: ProcessSet
    scale_local: bool
    local: set[int] = field(default_factory=set)

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable alone from now on."""
        self.local.add(id(variable))

    def meet(self, variables: Sequence[Any]) -> None:
        """Do nothing: no other part of a script reduces gradients."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of all ranks, in place of those of this one. None stays None."""
        found = list(gradients)
        ranks = self.process_set.size() or 1
        if not self.process_set.included() or ranks == 1:
            return found
        places = []
        for i, variable in enumerate(variables):
            if found[i] is None:
                continue
            if id(variable) not in self.local:
                places.append(i)
            elif self.scale_local:
                found[i] = found[i] / ranks
        groups = self.groups
        if groups is not None and not isinstance(groups, int):
            groups = [[id(each) for each in group] for group in groups]
        parts = gradient_groups.split([id(variables[i]) for i in places], groups)
        for number, part in enumerate(parts):
            some = [places[at] for at in part]
            for i, gradient in zip(
                some, self._reduced(number, [found[i] for i in some]), strict=True
            ):
                found[i] = gradient
        return found

    def _reduced(self, number: int, tensors: Sequence[Any]) -> list[Any]:
        how = self.op, 1.0 / self.predivide, self.predivide, self.process_set, True

        def prepare(*arrays: Array) -> Request:
            return array_calls.allreduce(arrays, f"{self.name}.gradients.{number}", *how)

        smaller, ctxs = zip(*map(self.compression.compress, tensors), strict=True)
        results = backends.run(smaller, prepare, self.process_set)
        return list(map(self.compression.decompress, results, ctxs))
