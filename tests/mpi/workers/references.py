"""What every rank gives in a check, known to all of them, and what must come of it in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from framework import fw, hvd
from numpy.typing import NDArray

Array = NDArray[Any]

REALS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
ERRORS = {
    "float64": 1e-13,
    "float32": 2e-6,
    "float16": 2e-3,
    "bfloat16": 2e-2,
    "complex64": 2e-6,
    "complex128": 1e-13,
}


def name_of(dtype: Any) -> str:
    """The name of a framework's or NumPy's type; a name is its own."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def given(shape: Sequence[int], dtype: Any = "float32", seed: int = 0, ranks: int = 0) -> list[Any]:
    """One array for each rank: small integers, or fractions, whose products stay in range."""
    made, name = [], name_of(dtype)
    for rank in range(ranks or hvd.size()):
        source = np.random.default_rng([seed, rank])
        if "float" in name or "complex" in name:
            drawn = source.random(tuple(shape)) * 2 - 0.5
            if "complex" in name:
                drawn = drawn * (0.6 + 0.8j)
        else:
            drawn = source.integers(0, 3, tuple(shape))
            if name.startswith("int"):
                drawn = drawn * 2 - 1
        made.append(fw.array(drawn, dtype))
    return made


def parts(rows: Callable[[int], int], *rest: int, dtype: Any = "float32") -> list[Any]:
    """An array for each rank, of as many rows as that rank has."""
    return [given((rows(rank), *rest), dtype, seed=rank, ranks=1)[0] for rank in range(hvd.size())]


def reduced(tensors: Sequence[Any], op: int, before: float = 1.0, after: float = 1.0) -> Array:
    """Their reduction in float64 (complex128), rounded only where integers must be."""
    name = name_of(tensors[0].dtype)
    whole = "int" in name or name == "bool"
    many = [fw.wide(each) * before for each in tensors]
    stack = np.stack([np.trunc(each) for each in many] if whole else many)
    if op in (hvd.Sum, hvd.Average):
        total = stack.sum(0)
        total = total / len(many) if op == hvd.Average else total
    elif op == hvd.Product:
        total = stack.prod(0)
    elif op == hvd.Adasum:
        return adasum(many) * after
    else:
        total = stack.min(0) if op == hvd.Min else stack.max(0)
    if name == "bool":
        return (total != 0).astype(np.float64)
    total = (np.trunc(total) if whole else total) * after
    return np.trunc(total) if whole else total


def adasum(tensors: Sequence[Any]) -> Array:
    """The adaptive sum by its definition: neighbours first, then pairs of pairs."""
    if len(tensors) == 1:
        return fw.wide(tensors[0])
    half = len(tensors) // 2
    a, b = adasum(tensors[:half]), adasum(tensors[half:])
    dot, aa, bb = (float((x * y).sum()) for x, y in ((a, b), (a, a), (b, b)))
    of_a = 1 - dot / (2 * aa) if aa else 1.0
    of_b = 1 - dot / (2 * bb) if bb else 1.0
    return a * of_a + b * of_b


def rows_of(array: Array, rank: int, ranks: int) -> Array:
    """The rows of a reducescatter that are a rank's."""
    return np.array_split(array, ranks)[rank]


def close(found: Any, expected: Any, what: object = "", error: float | None = None) -> None:
    """`found` is `expected`, which is exact, as well as its own type can say it."""
    array, exact = fw.wide(found), fw.wide(expected)
    assert array.shape == exact.shape, (what, array.shape, exact.shape)
    off = np.abs(array - exact)
    allowed = ERRORS.get(name_of(getattr(found, "dtype", "")), 0.0) if error is None else error
    if not (off <= allowed * np.maximum(np.abs(exact), 1.0)).all():
        raise AssertionError(f"{what}: off by {off.max()}\n{array}\n{exact}")


def same(found: Any, expected: Any, what: object = "") -> None:
    """`found` is `expected`, to the bit and with its dtype."""
    assert name_of(found.dtype) == name_of(expected.dtype), (what, found.dtype, expected.dtype)
    assert tuple(found.shape) == tuple(expected.shape), (what, found.shape, expected.shape)
    assert fw.raw(found) == fw.raw(expected), f"{what}:\n{found}\n{expected}"
