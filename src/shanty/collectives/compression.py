"""The values of `compression=` that all frameworks have in common: the interface, and none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


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


def compressed(
    call: Callable[..., Sequence[T]], compression: Any, tensors: Sequence[T], *how: Any
) -> list[T]:
    """Return the results of call(tensors, *how), whose tensors are compressed on their way."""
    smaller, ctxs = zip(*map(compression.compress, tensors), strict=True)
    return list(map(compression.decompress, call(smaller, *how), ctxs))
