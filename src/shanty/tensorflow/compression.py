"""Smaller gradients on their way: what `compression=` takes."""

from __future__ import annotations

from typing import Any

from shanty.collectives.compression import Compressor as Compressor
from shanty.collectives.compression import NoneCompressor as NoneCompressor
from shanty.tensorflow_ops.installed import tf


class FP16Compressor(Compressor):
    """Sends floating point numbers as float16, which keeps 3 digits of values up to 65504.

    They are added up in float32 and rounded once, at the end. Integers go as they are.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor in float16, and the dtype that it had."""
        smaller = tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor
        return smaller, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in the dtype `ctx`."""
        return tf.cast(tensor, ctx) if tensor.dtype != ctx else tensor


class Compression:
    """The compressors there are, to be named as `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
