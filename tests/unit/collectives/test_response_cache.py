"""The agreement between ranks: whatever they submit in whatever order, all conclude the same.

The ranks of these tests are objects in one process. They go through cycles as the negotiator's do,
with `&` in place of a reduction, and lists in place of messages.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import cache, reduce
from operator import and_
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from runs import examples
from shanty.collectives.request import Kind, Name, Op, Request, Signature, spell
from shanty.collectives.response_cache import RequestList, ResponseCache, ResponseList

VARIANTS = {
    "plain": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(2, 3)]),
    "other shape": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(3, 2)]),
    "fewer dimensions": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(6)]),
    "other dtype": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(2, 3, dtype=torch.int32)]),
    "other op": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(2, 3)], op=Op.MAX),
    "prescale": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(2, 3)], prescale=2.0),
    "postscale": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(2, 3)], postscale=2.0),
    "group": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(2, 3)], grouped=True),
    "two of them": lambda: Request(Kind.ALLREDUCE, "n", [torch.empty(2, 3)] * 2, grouped=True),
}


@cache
def key(name: str, variant: str = "plain") -> Signature:
    request = VARIANTS[variant]()
    request.name = name
    return request.key()


class Outcome(NamedTuple):
    name: str
    times: int  # how often a request of that name has ended on this rank
    error: bool


class Rank:
    """One rank's side: a program of what to submit, and what has become of it.

    Where the program ends, the rank joins.
    """

    def __init__(self, program: list[Signature], capacity: int) -> None:
        self.cache = ResponseCache(capacity)
        self.program = deque(program)
        self.waiting: dict[Name, Signature] = {}
        self.outcomes: list[Outcome] = []
        self.ended: Counter[str] = Counter()
        self.joined = self.told_join = False

    def take(self, count: int) -> None:
        """Submit as many, or as can be: a name that is under way must end first."""
        for _ in range(count):
            if not self.program or self.program[0][:2] in self.waiting:
                return
            request = self.program.popleft()
            self.waiting[request[:2]] = request

    def join(self) -> None:
        self.joined = self.joined or not (self.program or self.waiting)

    def offer(self) -> int:
        """The numbers of what it waits for, or would take part in; -1 asks for lists."""
        if self.joined:
            return (1 << len(self.cache)) - 1 if self.told_join else -1
        numbers = [self.cache.number(each) for each in self.waiting.values()]
        return -1 if -1 in numbers else sum(1 << each for each in numbers)

    def told(self) -> RequestList:
        self.told_join = self.joined
        return RequestList(tuple(self.waiting.values()), joined=self.joined, join_all=True)

    def finish(self, name: Name, error: bool) -> None:
        self.waiting.pop(name, None)
        self.ended[str(name[0])] += 1
        self.outcomes.append(Outcome(str(name[0]), self.ended[str(name[0])], error))


def cycle(ranks: list[Rank]) -> None:
    """What the engines do together in one cycle."""
    offers = [each.offer() for each in ranks]
    if -1 in offers:
        lists = [each.told() for each in ranks]
        for each in ranks:
            agreed = each.cache.agree(lists)
            for name in agreed.mismatched:
                each.finish(name, True)
            for request in agreed.ready:
                each.finish(request[:2], False)
    elif not all(each.joined for each in ranks):
        common = reduce(and_, offers)
        for each in ranks:
            for request in each.cache.keys(common):
                each.finish(request[:2], False)


class Plan(NamedTuple):
    """Steps of training loops: in each of its steps a rank submits all names, in some order."""

    names: list[str]
    steps: list[int]  # of each rank; it joins after them
    odd: dict[tuple[str, int], tuple[int, str]]  # name and step → the rank that differs, and how
    lonely: list[tuple[int, str]]  # names that one rank submits alone, at the start of its steps
    orders: list[list[list[str]]]  # of each rank and step
    pace: list[list[int]]  # how many each rank submits before each cycle, again and again
    capacity: int


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(1, 5))
    names = [f"grad.{number}" for number in range(draw(st.integers(1, 7)))]
    steps = [draw(st.integers(1, 4)) for _ in range(size)]
    shared = min(steps)
    keys = st.tuples(st.sampled_from(names), st.integers(0, shared - 1))
    differing = st.tuples(st.integers(0, size - 1), st.sampled_from(list(VARIANTS)[1:]))
    odd = draw(st.dictionaries(keys, differing, max_size=4)) if size > 1 else {}
    lonely = draw(st.lists(st.integers(0, size - 1), max_size=2)) if size > 1 else []
    if lonely:  # nobody joins then, who would take part in anything
        steps = [shared] * size
    orders = [[draw(st.permutations(names)) for _ in range(count)] for count in steps]
    pace = [draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)) for _ in range(size)]
    return Plan(
        names=names,
        steps=steps,
        odd=odd,
        lonely=[(rank, f"lonely.{number}") for number, rank in enumerate(lonely)],
        orders=orders,
        pace=[[*each, 1] for each in pace],
        capacity=draw(st.sampled_from([0, 1, 2, 5, 100])),
    )


def play(plan: Plan) -> list[Rank]:
    """Go through cycles until nothing can happen any more."""
    ranks = []
    for rank, order in enumerate(plan.orders):
        program = [key(name) for of, name in plan.lonely if of == rank]
        for step, names in enumerate(order):
            for name in names:
                who, how = plan.odd.get((name, step), (-1, ""))
                program.append(key(name, how if who == rank else "plain"))
        ranks.append(Rank(program, plan.capacity))
    most = sum(len(each.program) for each in ranks) + len(plan.names) + 2
    for number in range(10 * most):
        for each, pace in zip(ranks, plan.pace, strict=True):
            each.take(pace[number % len(pace)])
            if not plan.lonely:
                each.join()
        cycle(ranks)
    return ranks


@settings(max_examples=examples(300), deadline=None)
@given(plans())
def test_all_ranks_do_the_same_and_everything_once(plan: Plan) -> None:
    ranks = play(plan)
    for each in ranks[1:]:
        assert each.outcomes == ranks[0].outcomes  # the same, in the same order
        assert each.cache._keys == ranks[0].cache._keys  # and the numbers mean the same
    expected = {
        Outcome(name, step + 1, (name, step) in plan.odd)
        for name in plan.names
        for step in range(max(plan.steps))
    }
    assert set(ranks[0].outcomes) == expected
    assert len(ranks[0].outcomes) == len(expected)
    for rank, each in enumerate(ranks):
        assert not each.program
        lonely = [name for of, name in plan.lonely if of == rank]
        assert [name for name, _ in each.waiting] == lonely
        assert each.joined == (not plan.lonely)
        assert len(each.cache) <= plan.capacity


@settings(max_examples=100, deadline=None)
@given(plans())
def test_who_is_missing_is_said(plan: Plan) -> None:
    """Of the requests that only some ranks have made, the others are named, on all ranks alike."""
    ranks = play(plan)
    lists = [each.told() for each in ranks]
    agreed = [each.cache.agree(lists) for each in ranks]
    assert all(each == agreed[0] for each in agreed)
    assert agreed[0].missing == {
        (name, "allreduce"): [r for r in range(len(ranks)) if r != of] for of, name in plan.lonely
    }
    assert agreed[0].ready == []


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 149)))
def test_numbers_go_into_a_mask_and_come_back_in_order(numbers: set[int]) -> None:
    response_cache = ResponseCache(1000)
    keys = [key(f"t{number}") for number in range(150)]
    response_cache.agree([RequestList(tuple(keys))])
    mask = sum(1 << each for each in numbers)
    assert response_cache.keys(mask) == [keys[each] for each in sorted(numbers)]
    assert [response_cache.number(each) for each in keys] == list(range(150))


@pytest.mark.parametrize("variant", list(VARIANTS)[1:])
def test_a_mismatch_says_what_each_rank_asked_for(variant: str) -> None:
    keys = [key("grad.w"), key("grad.w", variant), key("grad.w")]
    response_cache = ResponseCache(10)
    agreed = response_cache.agree([RequestList((each,)) for each in keys])
    assert agreed.ready == []
    assert len(response_cache) == 0
    assert list(agreed.mismatched) == [("grad.w", "allreduce")]
    text = agreed.mismatched["grad.w", "allreduce"]
    assert spell(keys[0]) != spell(keys[1]), "the difference must be seen"
    for rank, each in enumerate(keys):
        assert f"rank {rank}: {spell(each)}" in text


def test_a_number_is_kept() -> None:
    """Also where it is told in full, since something beside it is new."""
    response_cache = ResponseCache(10)
    for names in ("ab", "bca", "cb"):
        response_cache.agree([RequestList(tuple(key(name) for name in names))])
    assert [response_cache.number(key(name)) for name in "abc"] == [0, 1, 2]
    assert len(response_cache) == 3


def test_rows_may_differ_where_they_are_gathered() -> None:
    for kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        one, two = (Request(kind, "a", [torch.empty(rows, 3)]).key() for rows in (2, 5))
        other = Request(kind, "a", [torch.empty(2, 4)]).key()
        assert one == two
        assert one != other


def test_a_broadcast_needs_its_root() -> None:
    """A rank that has joined has nothing to send; the others are told, not left alone."""
    request = Request(Kind.BROADCAST, "b", [torch.empty(2)], root=1).key()
    lists = [
        RequestList((request,), join_all=True),
        RequestList((), joined=True, join_all=True),
        RequestList((request,), join_all=True),
    ]
    agreed = ResponseCache(10).agree(lists)
    assert agreed.ready == []
    assert "join" in agreed.mismatched["b", "broadcast"]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.JOIN])
@pytest.mark.parametrize("willing", [0, 1, 2])
def test_what_is_done_while_a_rank_has_joined(kind: Kind, willing: int) -> None:
    """An allreduce; more than that only where all ranks want it."""
    tensors = [torch.empty(2)] if kind is not Kind.BARRIER else []
    request = Request(kind, "a", tensors, root=0).key()
    lists = [
        RequestList((request,), join_all=willing > 0),
        RequestList((), joined=True, join_all=willing > 1),
    ]
    agreed = ResponseCache(10).agree(lists)
    if kind in (Kind.ALLREDUCE, Kind.BARRIER) or willing == 2:
        assert agreed.ready == [request]
    else:
        assert agreed.ready == []
        assert "these ranks (of the set) have called: 1." in agreed.mismatched["a", kind]


def test_who_has_left_and_who_has_joined() -> None:
    lists = [RequestList((), joined=True), RequestList((key("w"),)), RequestList((), leaving=True)]
    agreed = ResponseCache(10).agree(lists)
    assert agreed == ResponseList(
        missing={("w", "allreduce"): [2]}, joined=frozenset({0}), left=[2]
    )


def test_beyond_its_capacity_all_is_forgotten_and_begins_anew() -> None:
    response_cache = ResponseCache(3)
    anew = [
        response_cache.agree([RequestList(tuple(key(name) for name in names))]).renumbered
        for names in (("a", "b"), ("c", "d"), ("e",))
    ]
    assert anew == [False, True, False]
    assert [response_cache.number(key(name)) for name in "abcde"] == [-1, -1, 0, 1, 2]


def test_without_capacity_nothing_is_remembered() -> None:
    response_cache = ResponseCache(0)
    agreed = response_cache.agree([RequestList((key("a"),))])
    assert agreed.ready == [key("a")]
    assert len(response_cache) == 0
