"""The DistributedOptimizer of op=Adasum: each rank makes its own step, and the steps are combined.

Adasum is defined on what a step changes, not on gradients: only so it is right for optimizers
that do more than scale the gradient (Maleki et al., "Scaling Distributed Training with Adaptive
Summation", 2020, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor

from shanty.torch.hvd import ops
from shanty.torch.hvd.requests import HorovodInternalError, Op


class AdasumReducing(torch.optim.Optimizer):
    """The methods that `wrap` puts into a subclass of the user's class.

    State such as momentum stays each rank's own.
    """

    _user_class: ClassVar[type[torch.optim.Optimizer]]

    def begin_reducing(
        self,
        wrapped: torch.optim.Optimizer,
        names: dict[Tensor, str],
        compression: Any,
        passes: int,
    ) -> None:
        """Take the place of a constructor."""
        self._wrapped = wrapped
        self._parameter_names = names
        self._compression = compression
        self.backward_passes_per_step = passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set it anew. Nothing depends on it: the step is what is combined."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Do nothing: gradients stay each rank's own."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Raise AssertionError: without its reduction a step would be this rank's alone."""
        raise AssertionError("skip_synchronize() has no meaning with op=Adasum.")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the step of the user's class, then replace it by the Adasum of all ranks' steps.

        Raises HorovodInternalError; the parameters then are as they were before.
        """
        trained = [
            (parameter, self._parameter_names.get(parameter, f"adasum.{i}.{j}"))
            for i, group in enumerate(self.param_groups)
            for j, parameter in enumerate(group["params"])
            if parameter.requires_grad
        ]
        starts = [parameter.clone() for parameter, _ in trained]
        self._wrapped._opt_called = True  # type: ignore[attr-defined]
        step = self._user_class.step
        loss = step(self) if closure is None else step(self, closure)
        try:
            steps = self._combined(trained, starts)
        except BaseException:
            for (parameter, _), start in zip(trained, starts, strict=True):
                parameter.copy_(start)
            raise
        for (parameter, _), start, change in zip(trained, starts, steps, strict=True):
            torch.add(start, change, out=parameter.detach())
        return loss

    def _combined(self, trained: list[tuple[Tensor, str]], starts: list[Tensor]) -> list[Tensor]:
        """What the steps of all ranks make together. In the memory of the parameters."""
        packed = [
            self._compression.compress(parameter.detach().sub_(start))
            for (parameter, _), start in zip(trained, starts, strict=True)
        ]
        handles = [
            ops.allreduce_async_(tensor, name=name, op=Op.ADASUM)
            for (tensor, _), (_, name) in zip(packed, trained, strict=True)
        ]
        found, failed = [], None
        for handle, (_, context) in zip(handles, packed, strict=True):
            try:
                found.append(self._compression.decompress(ops.synchronize(handle), context))
            except HorovodInternalError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return found
