"""Which ranks of an elastic run may go on together."""

from __future__ import annotations

from shanty.runtime.controller.membership import HOLD, HOLD_FEW, Membership


def asked(*groups: str) -> Membership:
    """Each rank of these groups asks for the whole of its own."""
    membership = Membership()
    for group in groups:
        for rank in group:
            membership.ask(int(rank), frozenset(map(int, group)))
    return membership


def decided(membership: Membership, living: str, now: float) -> tuple[str, str] | None:
    found = membership.decide(set(map(int, living)), now)
    return found and ("".join(map(str, sorted(found[0]))), "".join(map(str, sorted(found[1]))))


def test_all_that_live_go_on_at_once() -> None:
    membership = asked("013")
    assert decided(membership, "013", 5.0) == ("013", "")
    assert decided(membership, "013", 50.0) is None  # it has been answered


def test_it_waits_for_the_question_of_each() -> None:
    membership = Membership()
    for rank in (0, 1):
        membership.ask(rank, frozenset((0, 1, 3)))
    assert decided(membership, "013", 5.0) is None
    assert decided(membership, "013", 99.0) is None
    assert decided(membership, "01", 100.0) == ("013", "")  # rank 3 was lost meanwhile


def test_a_rank_that_is_known_to_be_lost_a_moment_later() -> None:
    membership = asked("01")
    assert decided(membership, "012", 5.0) is None
    assert decided(membership, "01", 5.1) == ("01", "")


def test_of_two_groups_the_larger_one_goes_on() -> None:
    membership = asked("34", "012")
    assert decided(membership, "01234", 5.0) is None
    assert decided(membership, "01234", 5.1 + HOLD) == ("012", "34")
    assert decided(membership, "012", 99.0) is None


def test_of_equal_groups_one_goes_on() -> None:
    membership = asked("13", "02")
    assert decided(membership, "0123", 5.0) is None
    assert decided(membership, "0123", 5.1 + HOLD) == ("02", "13")


def test_the_few_give_the_others_more_time() -> None:
    membership = asked("3")
    assert decided(membership, "0123", 5.0) is None
    assert decided(membership, "0123", 5.1 + HOLD) is None
    for rank in (0, 1, 2):
        membership.ask(rank, frozenset((0, 1, 2)))
    assert decided(membership, "0123", 5.0 + HOLD_FEW) is None
    assert decided(membership, "0123", 5.1 + HOLD_FEW) == ("012", "3")


def test_who_asks_again_has_left_its_group() -> None:
    membership = asked("012")
    membership.ask(0, frozenset((0, 1)))
    membership.ask(1, frozenset((0, 1)))
    assert decided(membership, "012", 5.0) is None
    assert decided(membership, "01", 5.1) == ("01", "")


def test_what_a_lost_rank_asked_does_not_count() -> None:
    membership = asked("3", "012")
    assert decided(membership, "012", 5.0) == ("012", "")
