"""Horovod's operations on tensors, and its questions about the world."""

from shanty.torch.hvd.api import *  # noqa: F403
from shanty.torch.hvd.api import __all__ as __all__
