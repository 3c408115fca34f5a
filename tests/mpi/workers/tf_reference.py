"""What every rank gives in a check, known to all of them, and what must come of it in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import shanty.tensorflow as hvd

Array = NDArray[Any]

REALS = [tf.float64, tf.float32, tf.float16, tf.bfloat16]
INTEGERS = [tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64]
OTHERS = [tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128]
EVERY = [*REALS, *INTEGERS, *OTHERS]

ERRORS = {
    "float64": 1e-13,
    "float32": 2e-6,
    "float16": 2e-3,
    "bfloat16": 2e-2,
    "complex64": 2e-6,
    "complex128": 1e-13,
}


def given(
    shape: Sequence[int], dtype: Any = tf.float32, seed: int = 0, ranks: int = 0
) -> list[Array]:
    """One array for each rank: small integers, or fractions, whose products stay in range."""
    made = []
    for rank in range(ranks or hvd.size()):
        source = np.random.default_rng([seed, rank])
        if dtype.is_floating or dtype.is_complex:
            drawn = source.random(tuple(shape)) * 2 - 0.5
            if dtype.is_complex:
                drawn = drawn * (0.6 + 0.8j)
        else:
            drawn = source.integers(0, 3, tuple(shape))
            if not dtype.is_unsigned and dtype != tf.bool:
                drawn = drawn * 2 - 1
        made.append(np.asarray(drawn).astype(dtype.as_numpy_dtype))
    return made


def array_of(found: Any) -> Array:
    """A tensor, a variable or what NumPy knows, as an array."""
    return np.asarray(found.numpy() if hasattr(found, "numpy") else found)


def wide(array: Array) -> Array:
    """The same in float64 or complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def is_whole(array: Array) -> bool:
    return array.dtype.kind in "iub"


def reduced(
    arrays: Sequence[Array], op: int, prescale: float = 1.0, postscale: float = 1.0
) -> Array:
    """Their reduction in float64 (complex128), rounded only where integers must be."""
    whole = is_whole(arrays[0])
    many = [wide(each) * prescale for each in arrays]
    stack = np.stack([np.trunc(each) for each in many] if whole else many)
    if op in (hvd.Sum, hvd.Average):
        total = stack.sum(0)
        total = total / len(many) if op == hvd.Average else total
    elif op == hvd.Product:
        total = stack.prod(0)
    elif op == hvd.Adasum:
        return adasum(many) * postscale
    else:
        total = stack.min(0) if op == hvd.Min else stack.max(0)
    if arrays[0].dtype.kind == "b":
        return wide(total != 0)
    total = (np.trunc(total) if whole else total) * postscale
    return np.trunc(total) if whole else total


def adasum(arrays: Sequence[Array]) -> Array:
    """The adaptive sum by its definition: neighbours first, then pairs of pairs."""
    if len(arrays) == 1:
        return arrays[0]
    half = len(arrays) // 2
    a, b = adasum(arrays[:half]), adasum(arrays[half:])
    dot, aa, bb = (float((x * y).sum()) for x, y in ((a, b), (a, a), (b, b)))
    of_a = 1 - dot / (2 * aa) if aa else 1.0
    of_b = 1 - dot / (2 * bb) if bb else 1.0
    return a * of_a + b * of_b


def rows_of(array: Array, rank: int, ranks: int) -> Array:
    """The rows of a reducescatter that are a rank's."""
    counts = [len(array) // ranks + (each < len(array) % ranks) for each in range(ranks)]
    start = sum(counts[:rank])
    return array[start : start + counts[rank]]


def close(found: Any, expected: Any, what: object = "", error: float | None = None) -> None:
    """`found` is `expected`, which is exact, as well as its own type can say it."""
    array, exact = array_of(found), array_of(expected)
    assert array.shape == exact.shape, (what, array.shape, exact.shape)
    off = np.abs(wide(array) - wide(exact))
    allowed = ERRORS.get(array.dtype.name, 0.0) if error is None else error
    if not (off <= allowed * np.maximum(np.abs(wide(exact)), 1.0)).all():
        raise AssertionError(f"{what}: off by {off.max()}\n{array}\n{exact}")


def same(found: Any, expected: Any, what: object = "") -> None:
    """`found` is `expected`, to the bit and with its dtype."""
    array, exact = array_of(found), array_of(expected)
    assert array.dtype == exact.dtype, (what, array.dtype, exact.dtype)
    assert array.shape == exact.shape, (what, array.shape, exact.shape)
    assert array.tobytes() == exact.tobytes(), f"{what}:\n{array}\n{exact}"
