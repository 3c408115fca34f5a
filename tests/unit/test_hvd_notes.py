"""Calls that are noted down: what comes again stays together, all else is as single requests."""

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

from shanty.torch.hvd.engine import Engine
from shanty.torch.hvd.inbox import Inbox
from shanty.torch.hvd.ledger import Ledger, Notice
from shanty.torch.hvd.notes import Note
from shanty.torch.hvd.plan import Planner
from shanty.torch.hvd.requests import HorovodInternalError, Kind, Op, Request
from shanty.torch.hvd.waiting import Waiting

ENGINE = cast("Engine", None)  # these are not waited for
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
    """The engine's parts that know of requests, and all ranks of which ask for the same."""

    def __init__(self) -> None:
        self.inbox = Inbox(ENGINE, float("inf"))
        self.ledger = Ledger(100)
        self.waiting = Waiting(self.ledger, self.inbox.names)
        self.planner = Planner(1 << 20, 100)

    def take(self) -> None:
        while (request := self.inbox.take()) is not None:
            self.waiting.add(request)
        notes, since = self.inbox.take_notes()
        if notes:
            self.waiting.add_notes(notes, since)

    def do(self) -> list[str]:
        """What is done of what waits, in its order."""
        done: list[str] = []

        def run(_: Any, requests: Any, __: None) -> HorovodInternalError | None:
            done.extend(f"{tuple(each.shape)}" for request in requests for each in request.tensors)
            return None

        bundle = self.waiting.bundle
        if bundle is not None and not self.waiting.unknown and bundle.mask == self.waiting.mask:
            mask = self.waiting.mask
            planned = self.planner.known(mask)
            if planned is None:
                planned = self.planner.plan(self.ledger.keys(mask), mask)
            bundle.run(planned, run)
            self.waiting.finish_bundle()
            return done
        agreed = self.ledger.agree([Notice(tuple(each.signature for each in self.waiting))])
        self.waiting.renumber(anew=agreed.renumbered)
        for batch in self.planner.plan(agreed.ready):
            run(batch, [self.waiting.find(name) for name in batch.names], None)
            self.waiting.finish(batch.names)
        return done


@settings(deadline=None)
@given(st.lists(CALLS, max_size=4), st.integers(2, 4))
def test_notes_come_to_what_requests_come_to(steps: list[Any], times: int) -> None:
    noted, asked = Rank(), Rank()
    for calls in [step for step in steps for _ in range(times)]:
        notes = [noted.inbox.note(name, tensor, op) for name, tensor, op in calls]
        requests = [
            Request(Kind.ALLREDUCE, name, (tensor,), (tensor,), op=op) for name, tensor, op in calls
        ]
        for request in requests:
            asked.inbox.put(request)
        for rank in (noted, asked):
            rank.take()
        assert noted.waiting.mask == asked.waiting.mask
        assert noted.waiting.unknown == asked.waiting.unknown
        assert sorted(noted.do()) == sorted(asked.do())
        assert all(each.done for each in [*notes, *requests])
        assert not noted.waiting
        assert not noted.waiting.mask
        assert not noted.inbox.names[Kind.ALLREDUCE]


def step(rank: Rank, names: list[str], tensors: list[torch.Tensor], op: Op = Op.SUM) -> bool:
    """Whether these calls were taken as a bundle; they are done then."""
    for name, tensor in zip(names, tensors, strict=True):
        rank.inbox.note(name, tensor, op)
    rank.take()
    bundled = rank.waiting.bundle is not None
    rank.do()
    return bundled


def test_what_comes_again_is_bundled_until_it_changes() -> None:
    rank = Rank()
    names, tensors = [f"w{i}" for i in range(10)], [torch.zeros(2, 3)] * 10
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
    rank = Rank()
    names, tensors = [f"w{i}" for i in range(10)], [torch.zeros(4)] * 10
    while not step(rank, names, tensors):
        pass
    notes = [rank.inbox.note(name, tensor, Op.SUM) for name, tensor in zip(names, tensors)]  # noqa: B905
    rank.take()
    assert rank.waiting.bundle is not None
    assert rank.waiting.first() == "allreduce.w0"
    rank.waiting.fresh = 0.0  # they were offered
    assert [str(each) for each in rank.waiting] == [f"allreduce.{name}" for name in names]
    assert rank.waiting.bundle is None
    assert rank.waiting.fresh == 0
    assert rank.waiting.unknown == 0
    rank.waiting.fail(HorovodInternalError("broken"))
    for note in notes:
        assert note.done
        with pytest.raises(HorovodInternalError, match=f"allreduce.{note.name} failed: broken"):
            note.wait()
    assert step(rank, names, tensors)  # the names are free again


def test_one_batch_may_fail_and_not_the_others() -> None:
    rank = Rank()
    rank.planner = Planner(0, 100)  # each by itself
    names, tensors = [f"w{i}" for i in range(10)], [torch.zeros(4)] * 10
    while not step(rank, names, tensors):
        pass
    notes = [rank.inbox.note(name, tensor, Op.SUM) for name, tensor in zip(names, tensors)]  # noqa: B905
    rank.take()
    bundle = rank.waiting.bundle
    assert bundle is not None
    planned = rank.planner.plan(rank.ledger.keys(bundle.mask), bundle.mask)
    broken = planned[4].names[0][0]
    bundle.run(
        planned,
        lambda batch, *_: HorovodInternalError("full") if batch is planned[4] else None,
    )
    assert not any(each.done for each in notes)
    rank.waiting.finish_bundle()
    for note in notes:
        if note.name == broken:
            with pytest.raises(HorovodInternalError, match="full"):
                note.wait()
        else:
            assert note.wait()[0] is note.tensor


def test_nothing_is_lost_that_comes_while_it_is_taken() -> None:
    inbox = Inbox(ENGINE, float("inf"))
    tensor, taken, each = torch.zeros(1), list[Note](), 20_000
    ends = threading.Event()

    def take() -> None:
        while not ends.is_set():
            taken.extend(inbox.take_notes()[0])

    taker = threading.Thread(target=take)
    taker.start()
    made = [inbox.note(f"{i}", tensor, Op.SUM) for i in range(each)]
    ends.set()
    taker.join()
    assert not inbox or inbox.since > 0
    taken.extend(inbox.take_notes()[0])
    assert taken == made
    assert not inbox
    assert inbox.since == 0


def test_a_note_is_never_taken_for_an_old_one() -> None:
    """Where one came while others were taken, nobody has looked at the clock for it."""
    inbox = Inbox(ENGINE, float("inf"))
    inbox.note("first", torch.zeros(1), Op.SUM)
    inbox._since = 0.0
    before = time.monotonic()
    _, since = inbox.take_notes()
    assert before <= since <= time.monotonic()


def test_what_has_waited_longest_is_told() -> None:
    rank = Rank()
    names, tensors = [f"w{i}" for i in range(10)], [torch.zeros(4)] * 10
    while not step(rank, names, tensors):
        pass
    for name, tensor in zip(names, tensors, strict=True):
        rank.inbox.note(name, tensor, Op.SUM)
    rank.take()
    assert rank.waiting.bundle is not None
    rank.waiting.bundle.since -= 100
    rank.inbox.put(Request(Kind.BARRIER, None))
    rank.take()
    assert rank.waiting.first() == "allreduce.w0"
    assert rank.waiting.oldest() >= 100


def test_one_note_that_is_kept_keeps_one_tensor() -> None:
    rank = Rank()
    names = [f"w{i}" for i in range(10)]
    while not step(rank, names, [torch.zeros(4)] * 10):
        pass
    tensors = [torch.zeros(4) for _ in names]
    notes = [rank.inbox.note(name, tensor, Op.SUM) for name, tensor in zip(names, tensors)]  # noqa: B905
    rank.take()
    rank.do()
    kept, others = notes[3], [weakref.ref(each.tensor) for each in notes if each is not notes[3]]
    del notes, tensors
    assert kept.done
    assert not any(each() is not None for each in others)


def test_what_is_in_the_inbox_keeps_the_engine_awake() -> None:
    inbox = Inbox(ENGINE, float("inf"))
    inbox.note("one", torch.zeros(1), Op.SUM)
    sleeper = threading.Thread(target=inbox.sleep, args=(60.0,), kwargs={"lightly": False})
    sleeper.start()
    sleeper.join(30)
    assert not sleeper.is_alive()


def test_what_comes_after_the_end_fails() -> None:
    inbox = Inbox(ENGINE, float("inf"))
    note = inbox.note("early", torch.zeros(1), Op.SUM)
    request = Request(Kind.BARRIER, None)
    inbox.put(request)
    inbox.close(HorovodInternalError("gone"))
    for each in (note, request):
        with pytest.raises(HorovodInternalError, match="failed: gone"):
            each.wait()
    with pytest.raises(HorovodInternalError, match="allreduce failed: gone"):
        inbox.note("late", torch.zeros(1), Op.SUM)
    with pytest.raises(HorovodInternalError, match="barrier failed: gone"):
        inbox.put(Request(Kind.BARRIER, None))
