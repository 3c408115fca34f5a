"""What happened first, on hosts whose clocks have different zeros."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.agent.clock_offset import ClockOffsets

OFFSETS = st.floats(-1e6, 1e6)
DELAYS = st.floats(0.0001, 1.5)


@given(OFFSETS, st.lists(DELAYS, min_size=1, max_size=20))
def test_what_the_quickest_message_shows_is_what_counts(offset: float, delays: list[float]) -> None:
    clocks, now = ClockOffsets(), 100.0
    for delay in delays:
        now += 0.01
        clocks.hear("away", now - offset, now + delay)
    error = clocks.here("away", now - offset) - now
    assert -1e-6 < error < min(delays) + 1e-3


def test_a_slow_message_does_not_make_a_failure_later() -> None:
    """As it was on a busy machine: the second's word took 10 ms, that of the first's victim 1."""
    clocks = ClockOffsets()
    for second in range(3):
        clocks.hear("cause", second, second + 0.001)
        clocks.hear("victim", 5000.0 + second, second + 0.001)
    clocks.hear("victim", 5003.004, 3.005)
    victim = clocks.here("victim", 5003.002)
    clocks.hear("cause", 3.003, 3.013)
    assert clocks.here("cause", 3.0) < victim


def test_clocks_that_come_apart() -> None:
    """By 20 millionths, for a day: 1.7 s."""
    clocks = ClockOffsets()
    for second in range(86400):
        clocks.hear("fast", second * 1.00002, second + 0.001)
        clocks.hear("slow", second * 0.99998, second + 0.001)
    assert abs(clocks.here("fast", 86399 * 1.00002) - 86399) < 0.002
    assert abs(clocks.here("slow", 86399 * 0.99998) - 86399) < 0.002


def test_a_single_word_that_took_long() -> None:
    clocks = ClockOffsets()
    for second in range(5):
        clocks.hear("busy", float(second), second + 0.001)
    clocks.hear("busy", 5.0, 9.0)
    assert abs(clocks.here("busy", 4.5) - 4.5) < 0.01


@given(st.floats(0.01, 3600))
def test_a_clock_that_stood_still_is_known_again_within_a_minute(paused: float) -> None:
    clocks = ClockOffsets()
    for second in range(40):
        clocks.hear("moved", float(second), second + 0.001)
    for second in range(40, 102):
        clocks.hear("moved", float(second), second + paused + 0.001)
    assert abs(clocks.here("moved", 101.0) - (101 + paused)) < 0.01
