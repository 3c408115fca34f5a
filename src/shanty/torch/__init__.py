"""PyTorch over MPI: the `mpi` backend of torch.distributed, and Horovod's API.

Importing this package gives the stock wheel the backend: `init_process_group("mpi")` works by that
name, with no MASTER_ADDR and no rank to pass. `backend` registers it; `group` holds the
collectives' public face; `worker` runs them on MPI.

`import shanty.torch as hvd` is Horovod's API, all of it, which is in `hvd`. MPI starts with
`init_process_group` or with `hvd.init`, not with the import.
"""

import gc

from shanty.torch import backend, elastic
from shanty.torch.hvd.compression import Compression
from shanty.torch.hvd.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from shanty.torch.hvd.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from shanty.torch.hvd.optimizer import DistributedOptimizer
from shanty.torch.hvd.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from shanty.torch.hvd.requests import HorovodInternalError
from shanty.torch.hvd.sync_batch_norm import SyncBatchNorm
from shanty.torch.hvd.world import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from shanty.torch.work import (
    CommunicationError,
    CommunicationTimeoutError,
    MismatchError,
    MPIWork,
)

__all__ = [
    "Adasum",
    "Average",
    "CommunicationError",
    "CommunicationTimeoutError",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "MPIWork",
    "Max",
    "Min",
    "MismatchError",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

backend.register()

# What PyTorch made when it was imported stays until the end: the collector need not look at it
# again. That takes a third of a second off the end of a rank, and something off every collection.
gc.freeze()
