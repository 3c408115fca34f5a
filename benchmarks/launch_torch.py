"""The smallest PyTorch job: one allreduce over the backend that the first argument names."""

import sys

import torch
import torch.distributed as dist

if sys.argv[1] == "mpi":
    import shanty.torch  # noqa: F401  registers the backend

dist.init_process_group(sys.argv[1])
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.destroy_process_group()
