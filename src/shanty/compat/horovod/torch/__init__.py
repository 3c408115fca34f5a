"""Horovod for PyTorch: `import horovod.torch as hvd`."""

from importlib import import_module

from shanty.torch.hvd import api
from shanty.torch.hvd.api import *  # noqa: F403

elastic = import_module(f"{__name__}.elastic")
for _part in ("compression", "functions", "mpi_ops", "optimizer", "sync_batch_norm"):
    import_module(f"{__name__}.{_part}")  # hvd.mpi_ops and its like need no import of their own

__all__ = [*api.__all__, "elastic"]
