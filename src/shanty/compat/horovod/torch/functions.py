"""Broadcasts of models, optimizers and objects."""

from shanty.torch.hvd.functions import *  # noqa: F403
from shanty.torch.hvd.functions import __all__ as __all__
