"""Compression of gradients: `Compression.none`, `Compression.fp16`."""

from shanty.torch.hvd.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
