"""`horovod.mxnet` is not here: importing it raises an error that says what to use instead."""

from shanty.compat.absent import absent

raise absent("horovod.mxnet", "MXNet is no longer developed; PyTorch is what people moved to.")
