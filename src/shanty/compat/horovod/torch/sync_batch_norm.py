"""Batch normalisation over the batches of all ranks."""

from shanty.torch.hvd.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
