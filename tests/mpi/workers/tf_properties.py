"""Any shapes, types and orders, drawn alike on all ranks. See run_checks.py."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from on_tensorflow import EVERY
from references import REALS, close, reduced, same
from references import given as arrays

import shanty.tensorflow as hvd

SETTINGS = settings(
    max_examples=15,
    deadline=None,
    database=None,
    derandomize=True,  # another choice on one rank would leave the others waiting
    suppress_health_check=[*HealthCheck],
)
SHAPE = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...], Any, int]]:
    kinds = st.sampled_from(["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"])
    found = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(kinds)
        of_numbers = kind in ("allreduce", "reducescatter")
        dtype = draw(st.sampled_from(REALS if of_numbers else EVERY))
        shape = draw(SHAPE)
        if kind not in ("allreduce", "broadcast"):
            rows = draw(st.integers(0, 4)) * (hvd.size() if kind == "alltoall" else 1)
            shape = (rows, *shape)
        found.append((kind, shape, dtype, number))
    return found


def made(kind: str, array: Any, name: str) -> Any:
    if kind == "broadcast":
        return hvd.broadcast(array, hvd.size() - 1, name=name)
    if kind in ("allreduce", "reducescatter"):
        return getattr(hvd, kind)(array, op=hvd.Sum, name=name)
    return getattr(hvd, kind)(array, name=name)


def check(kind: str, found: Any, tensors: list[Any]) -> None:
    size, rank = hvd.size(), hvd.rank()
    if kind == "allreduce":
        close(found, reduced(tensors, hvd.Sum))
    elif kind == "reducescatter":
        close(found, np.array_split(reduced(tensors, hvd.Sum), size)[rank])
    elif kind == "allgather":
        same(found, np.concatenate(tensors))
    elif kind == "broadcast":
        same(found, tensors[-1])
    else:
        same(found, np.concatenate([np.split(each, size)[rank] for each in tensors]))


@seed(1)
@SETTINGS
@given(calls(), st.integers(0, 1000))
def any_calls(drawn: list[tuple[str, tuple[int, ...], Any, int]], shuffle: int) -> None:
    """Eagerly in one order; in a graph in an order of each rank's own."""
    lots = [arrays(shape, dtype, seed=number) for _, shape, dtype, number in drawn]
    own = [tf.constant(each[hvd.rank()]) for each in lots]
    order = list(range(len(drawn)))
    random.Random(shuffle + hvd.rank()).shuffle(order)

    @tf.function
    def graph() -> list[Any]:
        found = {n: made(drawn[n][0], own[n], f"any.{n}") for n in order}
        return [found[n] for n in range(len(drawn))]

    eager = [made(each[0], one, f"any.{each[3]}") for each, one in zip(drawn, own, strict=True)]
    for results in (eager, graph()):
        for each, found, tensors in zip(drawn, results, lots, strict=True):
            check(each[0], found, tensors)


def check_any_calls() -> None:
    any_calls()
