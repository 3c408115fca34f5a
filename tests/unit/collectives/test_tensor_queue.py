"""Calls that are only entries of the queue: what comes again stays together, all else does not."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.plan import Planner
from shanty.collectives.request import Driver, Kind, Op, Request, TensorEntry
from shanty.collectives.response_cache import RequestList, ResponseCache
from shanty.collectives.tensor_queue import PendingRequests, TensorQueue

CONTROLLER = cast("Driver", None)  # these are not waited for
CALLS = st.lists(
    st.tuples(
        st.sampled_from([f"grad.{i}" for i in range(12)]),
        st.sampled_from([torch.zeros(3), torch.zeros(2, 2), torch.zeros(3, dtype=torch.float64)]),
        st.sampled_from([Op.SUM, Op.AVERAGE]),
    ),
    max_size=12,
    unique_by=lambda call: call[0],
)


class Rank:
    """The negotiator's parts that know of requests, and all ranks of which ask for the same."""

    def __init__(self) -> None:
        self.queue = TensorQueue(CONTROLLER, float("inf"))
        self.cache = ResponseCache(100)
        self.pending = PendingRequests(self.cache, self.queue.names)
        self.planner = Planner(1 << 20, 100)

    def take(self) -> None:
        while (request := self.queue.take()) is not None:
            self.pending.add(request)
        entries, since = self.queue.take_entries()
        if entries:
            self.pending.add_entries(entries, since)

    def do(self) -> list[str]:
        """What is done of what waits, in its order."""
        done: list[str] = []

        def run(_: Any, requests: Any, __: None) -> HorovodInternalError | None:
            done.extend(f"{tuple(each.shape)}" for request in requests for each in request.tensors)
            return None

        bundle = self.pending.bundle
        if bundle is not None and not self.pending.unknown and bundle.mask == self.pending.mask:
            mask = self.pending.mask
            planned = self.planner.known(mask)
            if planned is None:
                planned = self.planner.plan(self.cache.keys(mask), mask)
            bundle.run(planned, run)
            self.pending.finish_bundle()
            return done
        agreed = self.cache.agree([RequestList(tuple(each.signature for each in self.pending))])
        self.pending.renumber(afresh=agreed.renumbered)
        for batch in self.planner.plan(agreed.ready):
            run(batch, [self.pending.find(name) for name in batch.names], None)
            self.pending.finish(batch.names)
        return done


@settings(deadline=None)
@given(st.lists(CALLS, max_size=4), st.integers(2, 4))
def test_entries_come_to_what_requests_come_to(steps: list[Any], times: int) -> None:
    noted, asked = Rank(), Rank()
    for calls in [step for step in steps for _ in range(times)]:
        entries = [noted.queue.add(name, tensor, op) for name, tensor, op in calls]
        requests = [
            Request(Kind.ALLREDUCE, name, (tensor,), (tensor,), op=op) for name, tensor, op in calls
        ]
        for request in requests:
            asked.queue.put(request)
        for rank in (noted, asked):
            rank.take()
        assert noted.pending.mask == asked.pending.mask
        assert noted.pending.unknown == asked.pending.unknown
        assert sorted(noted.do()) == sorted(asked.do())
        assert all(each.done for each in [*entries, *requests])
        assert not noted.pending
        assert not noted.pending.mask
        assert not noted.queue.names[Kind.ALLREDUCE]


def step(rank: Rank, names: list[str], tensors: list[torch.Tensor], op: Op = Op.SUM) -> bool:
    """Whether these calls were taken as a bundle; they are done then."""
    for name, tensor in zip(names, tensors, strict=True):
        rank.queue.add(name, tensor, op)
    rank.take()
    bundled = rank.pending.bundle is not None
    rank.do()
    return bundled


NAMES = [f"w{i}" for i in range(10)]


def bundling(planner: Planner | None = None) -> Rank:
    """One that takes calls of all these names as a bundle from now on."""
    rank = Rank()
    rank.planner = planner or rank.planner
    while not step(rank, NAMES, [torch.zeros(4)] * 10):
        pass
    return rank


def taken(rank: Rank) -> list[TensorEntry]:
    """The entries of such calls, which are under way as a bundle."""
    entries = [rank.queue.add(name, torch.zeros(4), Op.SUM) for name in NAMES]
    rank.take()
    assert rank.pending.bundle is not None
    return entries


def test_what_comes_again_is_bundled_until_it_changes() -> None:
    rank, names, tensors = Rank(), NAMES, [torch.zeros(2, 3)] * 10
    reached = [step(rank, names, tensors) for _ in range(4)]
    assert reached == [False, False, True, True]
    for other_names, other_tensors, op in (
        (names[::-1], tensors, Op.SUM),
        ([*names[:9], "else"], tensors, Op.SUM),
        (names, [*tensors[:9], torch.zeros(3, 2)], Op.SUM),
        (names, [*tensors[:9], torch.zeros(2, 3, dtype=torch.float64)], Op.SUM),
        (names, tensors, Op.MAX),
        (names[:9], tensors[:9], Op.SUM),
    ):
        assert not step(rank, other_names, other_tensors, op)
    assert step(rank, names, tensors)
    assert [step(rank, names, tensors, Op.MAX) for _ in range(2)] == [False, True]
    assert [step(rank, names, tensors) for _ in range(2)] == [False, True]


def test_a_bundle_is_single_requests_for_whoever_asks() -> None:
    rank = bundling()
    entries = taken(rank)
    assert rank.pending.first() == "allreduce.w0"
    rank.pending.fresh = 0.0  # they were offered
    assert [str(each) for each in rank.pending] == [f"allreduce.{name}" for name in NAMES]
    assert rank.pending.bundle is None
    assert rank.pending.fresh == 0
    assert rank.pending.unknown == 0
    rank.pending.fail(HorovodInternalError("broken"))
    for entry in entries:
        assert entry.done
        with pytest.raises(HorovodInternalError, match=f"allreduce.{entry.name} failed: broken"):
            entry.wait()
    assert step(rank, NAMES, [torch.zeros(4)] * 10)  # the names are free again


def test_one_batch_may_fail_and_not_the_others() -> None:
    rank = bundling(Planner(0, 100))  # each by itself
    entries = taken(rank)
    bundle = rank.pending.bundle
    assert bundle is not None
    planned = rank.planner.plan(rank.cache.keys(bundle.mask), bundle.mask)
    broken = planned[4].names[0][0]
    bundle.run(
        planned,
        lambda batch, *_: HorovodInternalError("full") if batch is planned[4] else None,
    )
    assert not any(each.done for each in entries)
    rank.pending.finish_bundle()
    for entry in entries:
        if entry.name == broken:
            with pytest.raises(HorovodInternalError, match="full"):
                entry.wait()
        else:
            assert entry.wait()[0] is entry.tensor


def test_nothing_is_lost_that_comes_while_it_is_taken() -> None:
    queue = TensorQueue(CONTROLLER, float("inf"))
    tensor, taken, each = torch.zeros(1), list[TensorEntry](), 20_000
    ends = threading.Event()

    def take() -> None:
        while not ends.is_set():
            taken.extend(queue.take_entries()[0])

    taker = threading.Thread(target=take)
    taker.start()
    made = [queue.add(f"{i}", tensor, Op.SUM) for i in range(each)]
    ends.set()
    taker.join()
    assert not queue or queue.since > 0
    taken.extend(queue.take_entries()[0])
    assert taken == made
    assert not queue
    assert queue.since == 0


def test_an_entry_is_never_taken_for_an_old_one() -> None:
    """Where one came while others were taken, nobody has looked at the clock for it."""
    queue = TensorQueue(CONTROLLER, float("inf"))
    queue.add("first", torch.zeros(1), Op.SUM)
    queue._since = 0.0
    before = time.monotonic()
    _, since = queue.take_entries()
    assert before <= since <= time.monotonic()


def test_what_has_waited_longest_is_told() -> None:
    rank = bundling()
    taken(rank)
    assert rank.pending.bundle is not None
    rank.pending.bundle.since -= 100
    rank.queue.put(Request(Kind.BARRIER, None))
    rank.take()
    assert rank.pending.first() == "allreduce.w0"
    assert rank.pending.oldest() >= 100


def test_one_entry_that_is_kept_keeps_one_tensor() -> None:
    rank = bundling()
    entries = taken(rank)
    rank.do()
    kept = entries.pop(3)
    others = [weakref.ref(each.tensor) for each in entries]
    del entries
    assert kept.done
    assert not any(each() is not None for each in others)


def test_what_is_in_the_queue_keeps_the_negotiator_awake() -> None:
    queue = TensorQueue(CONTROLLER, float("inf"))
    queue.add("one", torch.zeros(1), Op.SUM)
    sleeper = threading.Thread(target=queue.sleep, args=(60.0,), kwargs={"lightly": False})
    sleeper.start()
    sleeper.join(30)
    assert not sleeper.is_alive()


def test_what_comes_after_the_end_fails() -> None:
    queue = TensorQueue(CONTROLLER, float("inf"))
    entry = queue.add("early", torch.zeros(1), Op.SUM)
    request = Request(Kind.BARRIER, None)
    queue.put(request)
    queue.close(HorovodInternalError("gone"))
    for each in (entry, request):
        with pytest.raises(HorovodInternalError, match="failed: gone"):
            each.wait()
    with pytest.raises(HorovodInternalError, match="allreduce failed: gone"):
        queue.add("late", torch.zeros(1), Op.SUM)
    with pytest.raises(HorovodInternalError, match="barrier failed: gone"):
        queue.put(Request(Kind.BARRIER, None))


@pytest.mark.parametrize("error", [None, HorovodInternalError("gone")])
def test_what_is_called_then_finds_the_outcome(error: HorovodInternalError | None) -> None:
    seen: list[object] = []
    request = Request(Kind.BARRIER, None)
    request.then = lambda: seen.append((request.done, request.error))
    request.finish(error)
    assert seen == [(True, error)]
