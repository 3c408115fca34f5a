"""The names of Horovod's API that `keras` and `tf.keras` have in common, and `shard`."""

# ruff: noqa: F403

from __future__ import annotations

from shanty.collectives import api
from shanty.collectives.api import *
from shanty.keras.backends import backend
from shanty.keras.compression import Compression
from shanty.keras.data import shard
from shanty.keras.evaluation import evaluate
from shanty.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from shanty.keras.values import Adasum, Average, Sum, allgather, allreduce, broadcast, reducescatter

__all__ = ["Adasum", "Average", "Compression", "DistributedOptimizer"]
__all__ += ["PartialDistributedOptimizer", "Sum", "allgather", "allreduce", "broadcast"]
__all__ += ["evaluate", "init", "reducescatter", "shard"]
__all__ += api.__all__


def _before() -> None:
    if backend() == "tensorflow":
        from shanty.tensorflow_ops import cluster

        cluster.forget()


init = api.init_of("shanty.keras", before=_before)
