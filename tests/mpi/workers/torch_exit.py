"""How processes end that do not call destroy_process_group. Argument: what rank 0 leaves behind.

nothing: all is complete. barrier: one not waited for, that all ranks join. never: one that the
others do not join, since they wait for a message that rank 0 does not send.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import shanty.torch  # noqa: F401
from shanty.torch import background_thread

background_thread.EXIT_PATIENCE = background_thread._LAST_MESSAGES = (
    0.5 if sys.argv[1] == "never" else 30.0
)

dist.init_process_group("mpi")
tensor = torch.ones(1)
dist.all_reduce(tensor)
match sys.argv[1], dist.get_rank():
    case "nothing", _:
        pass
    case "barrier", rank:
        work = dist.barrier(async_op=True)
        if rank:
            work.wait()
    case "never", 0:
        dist.barrier(async_op=True)  # the others have gone on to something else
    case "never", _:
        dist.recv(tensor, 0)
print("end of script", flush=True)
