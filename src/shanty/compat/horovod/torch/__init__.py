"""Horovod for PyTorch: `import horovod.torch as hvd`."""

from shanty.compat.aliases import alias
from shanty.torch.hvd import api, compression, functions, optimizer, sync_batch_norm
from shanty.torch.hvd.api import *  # noqa: F403

from . import elastic

alias(
    __name__,
    compression=compression,
    functions=functions,
    mpi_ops=api,
    optimizer=optimizer,
    sync_batch_norm=sync_batch_norm,
)
__all__ = [*api.__all__, "elastic"]
