"""What is done at once, and how soon: all of it once, alike with alike, within the threshold."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from runs import examples
from shanty.collectives.plan import Planner
from shanty.collectives.request import Kind, Op, Request, Signature
from shanty.collectives.settings import Settings
from shanty.collectives.tensor_queue import ENOUGH, wait_for_company

TENSORS = st.lists(
    st.builds(
        lambda rows, dtype: torch.empty(rows, 2, dtype=dtype),
        st.integers(0, 40),
        st.sampled_from([torch.float32, torch.float64]),
    ),
    min_size=1,
    max_size=4,
)
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([Kind.ALLREDUCE, Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST]),
        TENSORS,
        st.sampled_from([Op.SUM, Op.AVERAGE, Op.ADASUM]),
        st.sampled_from([1.0, 2.0]),
    ),
    max_size=20,
)


def keys(drawn: list[tuple[Kind, list[torch.Tensor], Op, float]]) -> list[Signature]:
    return [
        Request(kind, f"t{i}", tensors, op=op, prescale=scale, grouped=len(tensors) > 1).key()
        for i, (kind, tensors, op, scale) in enumerate(drawn)
    ]


@settings(max_examples=examples(200), deadline=None)
@given(REQUESTS, st.sampled_from([0, 100, 1000, 1 << 30]))
def test_everything_once_and_alike_with_alike(
    drawn: list[tuple[Kind, list[torch.Tensor], Op, float]], threshold: int
) -> None:
    wanted = keys(drawn)
    planner = Planner(threshold, 100)
    batches = planner.plan(wanted)
    assert sorted(each.key for batch in batches for each in batch.items) == sorted(wanted)
    for batch in batches:
        if len(batch.items) > 1:
            assert sum(item.nbytes for item in batch.items) <= threshold
            assert len({(item.alike, item.kind) for item in batch.items}) == 1
            assert batch.items[0].alike is not None
        if batch.kind is Kind.ALLREDUCE:
            places = [place for part in batch.parts for place in part.places]
            count = sum(len(item.shapes) for item in batch.items)
            assert sorted(places) == list(range(count))
    assert [each.names for each in planner.plan(wanted)] == [each.names for each in batches]


def test_a_plan_is_kept_until_numbers_change() -> None:
    planner = Planner(1 << 20, 100)
    wanted = keys([(Kind.ALLREDUCE, [torch.empty(2, 2)], Op.SUM, 1.0)] * 3)
    assert planner.known(7) is None
    made = planner.plan(wanted, 7)
    assert planner.known(7) is made
    planner.renumbered()
    assert planner.known(7) is None


def test_what_is_not_asked_for_again_is_forgotten() -> None:
    planner = Planner(1 << 20, 10)
    gone = []
    for size in range(1, 100):
        (batch,) = planner.plan(keys([(Kind.ALLREDUCE, [torch.empty(size)], Op.SUM, 1.0)]))
        gone.append(weakref.ref(batch.items[0]))
        del batch
    assert sum(each() is not None for each in gone) <= 11


def test_requests_wait_longer_where_there_is_no_core_spare() -> None:
    roomy, tight = (wait_for_company(None, spare) for spare in (True, False))
    assert roomy[0] < tight[0] and roomy[1] < tight[1]
    for spare in (True, False):
        set_by_user = Settings.read({"HOROVOD_CYCLE_TIME": "0"}).cycle_time
        assert wait_for_company(set_by_user, spare) == (0.0, ENOUGH)
    assert Settings.read({}).cycle_time is None
    assert Settings.read({"HOROVOD_CYCLE_TIME": "2.5"}).cycle_time == 0.0025
