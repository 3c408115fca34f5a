"""The optimizer that reduces gradients."""

from shanty.torch.hvd.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
