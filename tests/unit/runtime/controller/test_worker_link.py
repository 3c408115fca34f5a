"""What happened first, on hosts whose clocks have different zeros."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.controller.worker_link import ClockOffset

OFFSETS = st.floats(-1e6, 1e6)
DELAYS = st.floats(0.0001, 1.5)


@given(OFFSETS, st.lists(DELAYS, min_size=1, max_size=20))
def test_what_the_quickest_message_shows_is_what_counts(offset: float, delays: list[float]) -> None:
    clock, now = ClockOffset(), 100.0
    for delay in delays:
        now += 0.01
        clock.hear(now - offset, now + delay)
    error = clock.here(now - offset) - now
    assert -1e-6 < error < min(delays) + 1e-3


def test_a_slow_message_does_not_make_a_failure_later() -> None:
    """As it was on a busy machine: the second's word took 10 ms, that of the first's victim 1."""
    cause, victim = ClockOffset(), ClockOffset()
    for second in range(3):
        cause.hear(second, second + 0.001)
        victim.hear(5000.0 + second, second + 0.001)
    victim.hear(5003.004, 3.005)
    followed = victim.here(5003.002)
    cause.hear(3.003, 3.013)
    assert cause.here(3.0) < followed


@given(st.floats(0.01, 3600))
def test_a_clock_that_stood_still_is_known_again_within_a_minute(paused: float) -> None:
    clock = ClockOffset()
    for second in range(40):
        clock.hear(float(second), second + 0.001)
    for second in range(40, 102):
        clock.hear(float(second), second + paused + 0.001)
    assert abs(clock.here(101.0) - (101 + paused)) < 0.01
