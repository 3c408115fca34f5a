"""Some allreduces of tensors whose names are known, in step. Run by ../test_profile.py."""

from __future__ import annotations

import torch

import shanty.torch as hvd

hvd.init()
for number in range(30):
    hvd.allreduce(torch.ones(1000), name=f"step.{number}")
hvd.shutdown()
hvd.init()  # a script may begin again
hvd.allreduce(torch.ones(1000), name="again")
print("ok hvd_profile")
