"""What every rank gives in a check, known to all of them, and what must come of it in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import shanty.torch as hvd

REALS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32]

ERRORS = {
    torch.float64: 1e-13,
    torch.float32: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.complex64: 2e-6,
    torch.complex128: 1e-13,
}


def given(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, seed: int = 0, ranks: int = 0
) -> list[Tensor]:
    """One tensor for each rank: small integers, or fractions, whose products stay in range."""
    made = []
    for rank in range(ranks or hvd.size()):
        source = torch.Generator().manual_seed(1000 * seed + rank)
        if dtype.is_floating_point or dtype.is_complex:
            drawn = torch.rand(tuple(shape), generator=source, dtype=torch.float64) * 2 - 0.5
            if dtype.is_complex:
                drawn = drawn * (0.6 + 0.8j)
        else:
            drawn = torch.randint(0, 3, tuple(shape), generator=source)
            if dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
                drawn = drawn * 2 - 1
        made.append(drawn.to(dtype))
    return made


def reduced(
    tensors: Sequence[Tensor], op: int, prescale: float = 1.0, postscale: float = 1.0
) -> Tensor:
    """Their reduction in float64 (complex128), rounded only where integers must be."""
    dtype = tensors[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64
    whole = not (dtype.is_floating_point or dtype.is_complex)
    many = [each.to(wide) * prescale for each in tensors]
    stack = torch.stack([each.trunc() for each in many] if whole else many)
    if op in (hvd.Sum, hvd.Average):
        total = stack.sum(0)
        total = total / len(many) if op == hvd.Average else total
    elif op == hvd.Product:
        total = stack.prod(0)
    elif op == hvd.Adasum:
        return adasum(many) * postscale
    else:
        total = stack.amin(0) if op == hvd.Min else stack.amax(0)
    if dtype is torch.bool:
        return (total != 0).to(wide)
    total = (total.trunc() if whole else total) * postscale
    return total.trunc() if whole else total


def adasum(tensors: Sequence[Tensor]) -> Tensor:
    """The adaptive sum by its definition: neighbours first, then pairs of pairs."""
    if len(tensors) == 1:
        return tensors[0]
    half = len(tensors) // 2
    a, b = adasum(tensors[:half]), adasum(tensors[half:])
    dot, aa, bb = (float((x * y).sum()) for x, y in ((a, b), (a, a), (b, b)))
    of_a = 1 - dot / (2 * aa) if aa else 1.0
    of_b = 1 - dot / (2 * bb) if bb else 1.0
    return a * of_a + b * of_b


def close(found: Tensor, expected: Tensor, what: object = "") -> None:
    """`found` is `expected`, which is exact, as well as its own type can say it."""
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    error = (found.to(wide) - expected.to(wide)).abs()
    allowed = ERRORS.get(found.dtype, 0.0) * expected.abs().clamp(min=1.0)
    if not bool((error <= allowed).all()):
        worst = error.max() if error.numel() else math.nan
        raise AssertionError(f"{what}: off by {worst}\n{found}\n{expected}")


def same(found: Tensor, expected: Tensor, what: object = "") -> None:
    """`found` is `expected`, to the bit and with its dtype."""
    assert found.dtype == expected.dtype, (what, found.dtype, expected.dtype)
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    assert torch.equal(found, expected), f"{what}:\n{found}\n{expected}"
