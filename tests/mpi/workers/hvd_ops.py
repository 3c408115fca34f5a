"""Horovod's API, call by call, in one launch: all checks of these modules."""

from __future__ import annotations

import hvd_functions
import hvd_fusion
import hvd_gradients
import hvd_harness
import hvd_moves
import hvd_reductions
import hvd_sets
import torch

import shanty.torch as hvd

MODULES = (hvd_reductions, hvd_moves, hvd_gradients, hvd_functions, hvd_sets, hvd_fusion)

if __name__ == "__main__":
    torch.sparse.check_sparse_tensor_invariants.enable()  # else torch warns
    hvd.init()
    for module in MODULES:
        hvd_harness.run(module.CHECKS)
    hvd.shutdown()
