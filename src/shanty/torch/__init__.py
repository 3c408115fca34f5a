"""PyTorch over MPI: importing this package gives the stock wheel the `mpi` backend.

`init_process_group("mpi")` then works by that name, with no MASTER_ADDR and no rank to pass.
`backend` registers it; `group` holds the collectives' public face; `worker` runs them on MPI.
"""

import gc

from shanty.torch import backend
from shanty.torch.work import (
    CommunicationError,
    CommunicationTimeoutError,
    MismatchError,
    MPIWork,
)

__all__ = ["CommunicationError", "CommunicationTimeoutError", "MPIWork", "MismatchError"]

backend.register()

# What PyTorch made when it was imported stays until the end: the collector need not look at it
# again. That takes a third of a second off the end of a rank, and something off every collection.
gc.freeze()
