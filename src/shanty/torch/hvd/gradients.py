"""The gradients of a distributed optimizer: when each is sent off, and how it comes back.

A hook of PyTorch calls `Gradient.accumulated` on every backward pass, for every parameter, while
the backward pass waits: it does nothing that could be done once.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shanty.collectives import process_sets
from shanty.collectives.negotiation import Negotiator
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Kind, Op, Request, TensorEntry
from shanty.torch.hvd import calls, ops

_names: weakref.WeakKeyDictionary[Negotiator, Counter[str]] = weakref.WeakKeyDictionary()


def own_name(name: str, process_set: ProcessSet) -> str:
    """The name of a gradient that no other one has, of another optimizer for example.

    The same on all ranks that make their optimizers in the same order, and after an elastic reset,
    when names are counted again.
    """
    used = _names.setdefault(process_sets.negotiator(process_set), Counter())
    used[name] += 1
    return name if used[name] == 1 else f"{name}.optimizer{used[name]}"


@dataclass
class Reduction:
    """The way to reduce all gradients of one optimizer.

    predivide: what they are divided by before the sum, and multiplied by after it.
    compression: None for none. passes: backward passes until a gradient is sent off.
    begun: whether there were backward passes since the last synchronize.
    """

    process_set: ProcessSet
    op: Op
    predivide: float
    compression: Any
    sparse_as_dense: bool
    passes: int
    begun: bool = False

    def submit(self, name: str, tensors: Sequence[Tensor], grouped: bool) -> Request | TensorEntry:
        """Have tensors reduced in place; those of a group all or none."""
        if not grouped and self.predivide == 1 and tensors[0].is_cpu:
            queue = process_sets.negotiator(self.process_set).queue
            return queue.add(name, tensors[0], self.op)
        request = Request(
            Kind.ALLREDUCE,
            name,
            tensors,
            tensors,
            op=self.op,
            prescale=1.0 / self.predivide,
            postscale=self.predivide,
            grouped=grouped,
        )
        calls.submit(request, self.process_set)
        return request


class Gradient:
    """The gradient of one parameter, which belongs to a unit."""

    __slots__ = (
        *("name", "parameter", "how", "left", "unit", "grad", "hook"),
        *("_context", "_gathering", "_sparse_dim"),
    )
    unit: Unit
    hook: Any

    def __init__(self, name: str, parameter: Tensor, how: Reduction) -> None:
        self.name = own_name(name, how.process_set)
        self.parameter = parameter
        self.how = how
        self.left = how.passes
        self.grad: Tensor | None = None  # what was sent off; or what passes have added to
        self._context: Any = None  # of the compression
        self._gathering: Callable[[], Tensor] | None = None  # of a sparse gradient
        self._sparse_dim = 0  # dimensions that are sparse, once there was such a gradient

    def accumulated(self, parameter: Tensor) -> None:
        """A backward pass has added to the gradient."""
        how = self.how
        how.begun = True
        left = self.left - 1
        if left != how.passes - 1 and parameter.grad is not self.grad:
            # The script has dropped it, as by the model's zero_grad(): this pass is the first.
            self.unit.drop()
            left = self.left - 1
        self.left = left
        if left > 0:
            self.grad = parameter.grad
            return
        if left < 0:
            raise AssertionError(
                f"{self.name}: there was one more backward pass than backward_passes_per_step="
                f"{how.passes} before step(). Raise backward_passes_per_step to accumulate "
                "gradients over several."
            )
        self.unit.ready()

    def pack(self) -> Tensor | None:
        """Return what is to be reduced in place; None of a sparse gradient."""
        how = self.how
        grad = self.parameter.grad
        if grad is None:
            grad = self.parameter.grad = self._nothing()
        elif grad.requires_grad:
            raise AssertionError(
                f"{self.name}: the gradient has a graph of its own (create_graph=True), "
                "so it cannot be reduced in place."
            )
        self.grad = tensor = grad
        if grad.is_sparse:
            self._sparse_dim = grad.sparse_dim()
            if not how.sparse_as_dense:
                self._gathering = ops.sparse_allreduce_async(
                    grad, self.name, how.op, process_set=how.process_set
                )
                return None
            tensor = grad.to_dense()
        if how.compression is not None:
            tensor, self._context = how.compression.compress(tensor)
        return tensor

    def _nothing(self) -> Tensor:
        """Zeros; sparse where gradients of this parameter have been, as other ranks' will be."""
        parameter = self.parameter.detach()
        if not self._sparse_dim:
            return torch.zeros_like(parameter)
        return torch.sparse_coo_tensor(
            torch.empty(self._sparse_dim, 0, dtype=torch.int64, device=parameter.device),
            parameter.new_empty(0, *parameter.shape[self._sparse_dim :]),
            parameter.shape,
            check_invariants=False,
        )

    def unpack(self, reduced: Tensor) -> None:
        """Put what came of `pack` back in its place."""
        grad, how = self.grad, self.how
        assert grad is not None
        if self.parameter.grad is not grad:
            raise AssertionError(
                f"{self.name}: the gradient was replaced while it was being reduced. Between "
                "backward() and step() call synchronize() before changing gradients."
            )
        if reduced is grad:
            return
        if how.compression is not None:
            reduced = how.compression.decompress(reduced, self._context)
        if grad.is_sparse:
            self.parameter.grad = reduced.to_sparse(self._sparse_dim)
        elif reduced is not grad:
            grad.copy_(reduced)

    def gather(self) -> None:
        """Wait for a sparse gradient, if it is one."""
        if self._gathering is not None:
            self.parameter.grad = self._gathering().coalesce()

    def drain(self) -> None:
        """Wait for a sparse gradient that nobody wants."""
        if self._gathering is not None:
            self._gathering()

    def forget(self) -> None:
        """Drop what is under way, and begin again."""
        self.grad = self._context = self._gathering = None
        self.left = self.how.passes


class Unit:
    """Gradients that are sent off at once: a single one, or a group, reduced all or none."""

    def __init__(self, members: Sequence[Gradient]) -> None:
        self.members = members
        self.how = members[0].how
        self._unready = len(members)
        self._submitted = False
        self._request: Request | TensorEntry | None = None
        self._packed: list[Gradient] = []  # all but sparse and frozen ones
        for each in members:
            each.unit = self

    def ready(self) -> None:
        """Called when one of them has seen all of its backward passes."""
        self._unready -= 1
        if not self._unready:
            self.submit()

    def submit(self) -> None:
        """Send them off, unless they have been; gradients that are not there count as zero."""
        if self._submitted:
            return
        self._submitted = True
        tensors = []
        try:
            for each in self.members:
                if each.parameter.requires_grad and (tensor := each.pack()) is not None:
                    tensors.append(tensor)
                    self._packed.append(each)
            if tensors:
                grouped = len(self.members) > 1
                self._request = self.how.submit(self._packed[0].name, tensors, grouped)
        except BaseException:  # they must not pass for reduced
            self.forget()
            raise

    def finish(self) -> None:
        """Wait for what was sent off, and begin again. Raises HorovodInternalError."""
        try:
            if self._request is not None:
                for each, reduced in zip(self._packed, self._request.wait(), strict=True):
                    each.unpack(reduced)
            for each in self.members:
                each.gather()
        finally:
            self.forget()

    def drop(self) -> None:
        """Wait for what was sent off, if it was, whose result nobody wants; then begin again."""
        try:
            if self._request is not None:
                self._request.wait()
            for each in self.members:
                each.drain()
        finally:
            self.forget()

    def forget(self) -> None:
        """Drop what is under way, and begin again."""
        self._submitted = False
        self._request = None
        self._packed = []
        self._unready = len(self.members)
        for each in self.members:
            each.forget()
