"""`horovod.keras` is not here: importing it raises an error that says what to use instead."""

from shanty.compat.absent import absent

raise absent(
    "horovod.keras",
    "Keras 3 on PyTorch trains with DistributedDataParallel and `import shanty.torch`.",
)
