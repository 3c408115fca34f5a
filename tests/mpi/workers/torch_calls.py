"""Every call, in one launch: the checks of torch_collectives, torch_ways and torch_properties."""

from __future__ import annotations

import harness
import torch.distributed as dist
import torch_collectives
import torch_properties
import torch_ways

MODULES = (torch_collectives, torch_ways, torch_properties)

if __name__ == "__main__":
    dist.init_process_group("mpi")
    for module in MODULES:
        harness.run(module.CHECKS)
    dist.destroy_process_group()
