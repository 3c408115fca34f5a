"""Smaller gradients on their way: what `compression=` takes."""

from __future__ import annotations

import torch
from torch import Tensor

from shanty.collectives.compression import Compressor as Compressor
from shanty.collectives.compression import NoneCompressor as NoneCompressor


class FP16Compressor(Compressor):
    """Sends floating point numbers as float16, which keeps 3 digits of values up to 65504.

    They are added up in float32 and rounded once, at the end. Integers go as they are.
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, object]:
        """The tensor in float16, and the dtype that it had."""
        smaller = tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor
        return smaller, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: object) -> Tensor:
        """The tensor in the dtype `ctx`."""
        if not isinstance(ctx, torch.dtype):
            raise TypeError(f"ctx must be the dtype that compress() returned, not {ctx!r}.")
        return tensor.to(ctx)


class Compression:
    """The compressors there are, to be named as `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
