"""SyncBatchNorm: batch normalization over the batches of all ranks, on the CPU as on GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from shanty.collectives import world
from shanty.collectives.request import Op
from shanty.torch.hvd import ops


class SyncBatchNorm(_BatchNorm):
    """Takes the place of BatchNorm1d, 2d and 3d; their arguments, parameters and buffers.

    While training, mean and variance are those of the batches of all ranks together, which may be
    of different sizes. Inputs of shape (N, C, …). Collective while training, backward too; in
    eval mode only without running statistics. Parameters' gradients are of this rank's batch.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: needs 2 or more dimensions, not {input.dim()}.")

    def forward(self, input: Tensor) -> Tensor:
        """Normalize. Raises ValueError for an input of less than 2 dimensions, or one value."""
        self._check_input_dim(input)
        if not self.training and self.track_running_stats:
            return self._alone(input, training=False, momentum=0.0)
        momentum = self._count_batch()
        if world.size() == 1:
            return self._alone(input, training=True, momentum=momentum)
        count, mean, variance = _whole(input)
        if count <= 1:
            raise ValueError("SyncBatchNorm: needs more than one value per channel to train.")
        if self.training and self.track_running_stats:
            self._remember(mean, variance * (count / (count - 1)), momentum)
        found: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, variance, count, self.eps
        )
        return found

    def _count_batch(self) -> float:
        """The share of this batch in the running statistics."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum

    def _alone(self, input: Tensor, training: bool, momentum: float) -> Tensor:
        tracked = not self.training or self.track_running_stats
        return functional.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            training,
            momentum,
            self.eps,
        )

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, momentum: float) -> None:
        assert self.running_mean is not None and self.running_var is not None
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.lerp_(new.to(running.dtype), momentum)


@torch.no_grad()
def _whole(input: Tensor) -> tuple[int, Tensor, Tensor]:
    """Values per channel on all ranks, and their mean and variance (biased), in float64.

    Each rank's own are found in float32 at least, about their own mean, so that a large mean
    loses no digits; one sum of float64 puts them together.
    """
    channels = input.size(1)
    count = input.numel() // channels if channels else 0
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=input.device)
    if count:
        variance, mean = torch.var_mean(_precise(input), dim=_others(input), correction=0)
        mean, variance = mean.double(), variance.double()
        sums[:channels] = mean * count
        sums[channels:-1] = (variance + mean * mean) * count
        sums[-1] = count
    ops.allreduce_(sums, name="sync_batch_norm.forward", op=Op.SUM)
    whole = sums[-1].item()
    mean = sums[:channels] / whole
    variance = (sums[channels:-1] / whole - mean * mean).clamp_(min=0)
    return int(whole), mean, variance


class _Normalize(Function):
    """Ioffe and Szegedy, "Batch Normalization", 2015; `mean` and `variance` are of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: int,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(input, weight, mean, variance)
        ctx.count, ctx.eps = count, eps
        dtype = _precise_dtype(input)
        # The same kernel as in eval mode: it takes the statistics as they are.
        mean, variance = mean.to(dtype), variance.to(dtype)
        weight, bias = (None if each is None else each.to(dtype) for each in (weight, bias))
        return functional.batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, mean, variance = ctx.saved_tensors
        channels, others = input.size(1), _others(input)
        dtype = _precise_dtype(input)
        shape = [channels if dim == 1 else 1 for dim in range(input.dim())]
        scale = (variance + ctx.eps).rsqrt()
        normal = (_precise(input) - mean.to(dtype).view(shape)) * scale.to(dtype).view(shape)
        grad = grad_output.to(dtype)
        grad_bias = grad.sum(others)
        grad_weight = (grad * normal).sum(others)
        grad_input = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([grad_bias, grad_weight])
            ops.allreduce_(sums, name="sync_batch_norm.backward", op=Op.SUM)
            mean_grad, mean_product = (sums / ctx.count).view(2, *shape)
            factor = scale.to(dtype) if weight is None else scale.to(dtype) * weight
            grad_input = grad.sub_(mean_grad) if grad is not grad_output else grad - mean_grad
            grad_input = grad_input.sub_(normal.mul_(mean_product)).mul_(factor.view(shape))
            grad_input = grad_input.to(input.dtype)
        return (
            grad_input,
            grad_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            grad_bias.to(weight.dtype) if ctx.needs_input_grad[2] else None,
            *(None,) * 4,
        )


def _others(input: Tensor) -> list[int]:
    return [dim for dim in range(input.dim()) if dim != 1]


def _precise_dtype(input: Tensor) -> torch.dtype:
    return torch.float64 if input.dtype == torch.float64 else torch.float32


def _precise(input: Tensor) -> Tensor:
    return input.to(_precise_dtype(input))
