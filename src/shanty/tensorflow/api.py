"""All names of Horovod's API in one place: those of `shanty.tensorflow`."""

# ruff: noqa: F403

from __future__ import annotations

from shanty.collectives import api
from shanty.collectives.api import *
from shanty.tensorflow import functions
from shanty.tensorflow.compression import Compression
from shanty.tensorflow.functions import *
from shanty.tensorflow.optimizer import DistributedOptimizer
from shanty.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from shanty.tensorflow_ops import cluster, ops
from shanty.tensorflow_ops.installed import tf
from shanty.tensorflow_ops.ops import *

__all__ = ["Compression", "cuda_built", "gpu_available", "init"]
__all__ += ["DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape"]
__all__ += functions.__all__
__all__ += ops.__all__
__all__ += api.__all__

init = api.init_of("shanty.tensorflow", before=cluster.forget)


def cuda_built() -> bool:
    """Return whether this TensorFlow has CUDA, so that tensors on a GPU can be passed."""
    return bool(tf.test.is_built_with_cuda())


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Return whether TensorFlow sees a GPU. ext_base_name, verbose: have no effect."""
    return bool(tf.config.list_physical_devices("GPU"))
