"""Smaller gradients on their way, for the tensors of any backend: what `compression=` takes."""

from __future__ import annotations

from typing import Any

from shanty.keras.backends import cast, kind_of


class Compressor:
    """The interface of a compressor. Subclass it for one of your own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return what is sent in place of `tensor`, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return what was received as it was before compression. ctx: from `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor itself, and nothing to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor


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
