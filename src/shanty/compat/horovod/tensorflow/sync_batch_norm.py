"""`horovod.tensorflow.sync_batch_norm`: batch normalization over the samples of all ranks."""

from shanty.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
