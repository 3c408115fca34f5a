"""Prints a rank's place, its words and its variables, one line; with `train` first, trains."""

import os
import sys

NAMES = ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROLE_RANK")

words = sys.argv[1:]
if "train" in words:
    import torch
    import torch.distributed as dist

    assert dist.is_torchelastic_launched()
    dist.init_process_group("gloo")
    total = torch.ones(()) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    place = f"{dist.get_rank()} of {dist.get_world_size()} sum {int(total)}"
    dist.destroy_process_group()
else:
    place = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
said = [f"{name}={os.environ[name]}" for name in NAMES]
said += [f"{n}={v}" for n, v in sorted(os.environ.items()) if n.startswith(("ACCEL", "CROSS"))]
# In one piece: several processes may write to the rank's output.
sys.stdout.write(" ".join([place, *words, "|", *said]) + "\n")
sys.stdout.flush()
