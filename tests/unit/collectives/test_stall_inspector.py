"""When ranks ask each other about requests that wait long."""

from __future__ import annotations

import pytest

from shanty.collectives.request import Kind, Request
from shanty.collectives.response_cache import RequestList, ResponseCache
from shanty.collectives.settings import Settings
from shanty.collectives.stall_inspector import StallInspector


def inspector(rank: int = 0, **settings: float) -> StallInspector:
    return StallInspector(rank, (0, 1), Settings(**settings))


def asked(of: StallInspector, left: float, begun: float, until: float) -> list[float]:
    """When it asks, in seconds since the start: one request is left over from `left` on, that
    nobody waits for, and the main thread waits for another from `begun` on.
    """
    times = [step / 10 for step in range(round(until * 10))]
    return [
        now for now in times if of.due(max(now - left, 0.0), now - begun if now > begun else 0.0)
    ]


def test_it_asks_after_1_2_4_seconds() -> None:
    assert asked(inspector(), 0, 1000, 70) == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize("begun", [5, 33, 70, 200])
def test_an_old_request_does_not_put_off_the_look_at_a_new_wait(begun: float) -> None:
    """A handle that nobody synchronizes, as after a failure between two calls."""
    found = asked(inspector(), 0, begun, begun + 10)
    for seconds in (1, 2, 4):
        assert any(begun + seconds <= each < begun + seconds + 1 for each in found), found


def test_each_wait_is_looked_at_anew() -> None:
    one = inspector()
    assert asked(one, 1000, 0, 5) == asked(one, 1000, 0, 5) == [1, 2, 4]


def test_the_warning_names_what_the_missing_rank_waits_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = Request(Kind.REDUCESCATTER, "r").key()
    lists = [
        RequestList((key,), awaits="reducescatter.r", waited=70, oldest=70, place="a.py:1"),
        RequestList((), awaits="join.noname.0", place="a.py:2 in step"),
    ]
    one = inspector()
    assert one.verdict(ResponseCache(9).agree(lists), lists) is None
    said = capsys.readouterr().err
    assert "rank 1 (at a.py:2 in step), which waits for join.noname.0, has not" in said
    assert "reducescatter.r" in said
    assert inspector(stall_check=False).verdict(ResponseCache(9).agree(lists), lists) is None
    assert capsys.readouterr().err == ""
