"""All checks of Horovod's optimizer and of SyncBatchNorm, in one start of PyTorch."""

import hvd_batch_norm
import hvd_optimizer
import hvd_optimizer_gradients
import hvd_optimizer_use
from hvd_harness import run

import shanty.torch as hvd

MODULES = (hvd_optimizer, hvd_optimizer_use, hvd_optimizer_gradients, hvd_batch_norm)

hvd.init()
run([check for module in MODULES for check in module.CHECKS])
hvd.shutdown()
