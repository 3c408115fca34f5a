"""NumPy's arrays as tensors of collectives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mpi4py")

from shanty.collectives.array_kernels import KERNELS, aligned

KINDS = st.sampled_from(["uint8", "bool", "float16", "int32", "float64", "complex128"])


@given(st.lists(st.integers(0, 5), max_size=3), KINDS)
def test_memory_that_others_can_take_over(shape: list[int], kind: str) -> None:
    made = aligned(shape, kind)
    assert made.shape == tuple(shape)
    assert made.dtype == kind
    assert made.flags.c_contiguous and made.flags.writeable
    assert made.ctypes.data % 64 == 0 or not made.size


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_a_reduction_into_other_memory(name: str) -> None:
    given, terms = [np.array([1.0, 5.0])], [np.array([3.0, 2.0])]
    into = [np.zeros(2)]
    KERNELS.combine_into(name, given, terms, into)
    expected = [each.copy() for each in given]
    KERNELS.combine(name, expected, terms)
    assert np.array_equal(into[0], expected[0])
    assert np.array_equal(given[0], [1.0, 5.0])


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1), st.integers(1, 9))
def test_an_average_of_integers_is_cut_off(values: list[int], ranks: int) -> None:
    total = np.array(values, np.int64)
    KERNELS.divide([total], ranks)
    assert total.tolist() == [int(abs(each) // ranks) * (1 if each >= 0 else -1) for each in values]


def test_a_factor_that_the_type_does_not_know() -> None:
    """float16 ends at 65504, and has 1e-8 as 0."""
    values = np.array([1e-3, 6e-3], np.float16)
    wanted = (values.astype(np.float64) * 1e5).astype(np.float16)
    KERNELS.scale([values], 1e5)
    assert np.array_equal(values, wanted)
