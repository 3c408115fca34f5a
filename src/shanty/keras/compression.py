"""Smaller gradients on their way, for the tensors of any backend: what `compression=` takes."""

from __future__ import annotations

from typing import Any

from shanty.collectives.compression import Compressor as Compressor
from shanty.collectives.compression import NoneCompressor as NoneCompressor
from shanty.keras.backends import cast, kind_of


class FP16Compressor(Compressor):
    """Sends floating point numbers as float16, which keeps 3 digits of values up to 65504.

    They are added up in float32 and rounded once, at the end. Integers go as they are.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor in float16, and the name of the type that it had."""
        kind = kind_of(tensor)
        return (cast(tensor, "float16") if "float" in kind else tensor), kind

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in the type `ctx`."""
        return cast(tensor, ctx)


class Compression:
    """The compressors there are, to be named as `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
