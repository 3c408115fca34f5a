"""How long another has not been heard, and what is said so that one is heard."""

import threading
import time

import pytest

from shanty.runtime.agent import heartbeat
from shanty.runtime.agent.heartbeat import FailureDetector, Heartbeat


def test_a_gap_between_two_looks_is_not_the_others_silence() -> None:
    silence = FailureDetector()
    begun = time.monotonic()
    assert silence.look(begun + 0.5) < 1
    assert silence.look(begun + 100) < 2  # the machine stood still
    for half in range(1, 40):
        seconds = silence.look(begun + 100 + half / 2)
    assert 19 < seconds < 22
    silence.heard()
    assert silence.seconds == 0
    assert silence.since >= begun


def test_a_busy_agent_is_heard_and_one_that_stays_away_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT", 0.01)
    monkeypatch.setattr(heartbeat, "_BUSY", 0.5)
    heard: list[float] = []
    several = threading.Event()

    def say() -> None:
        heard.append(time.monotonic())
        if len(heard) > 5:
            several.set()

    agent = Heartbeat(say)
    try:
        begun = time.monotonic()
        assert several.wait(10)  # this thread did nothing for it
        until = time.monotonic() + 10
        while time.monotonic() < until and time.monotonic() - heard[-1] < 0.5:
            pass
        assert heard[-1] < begun + 1  # it was too long at one thing
        count = len(heard)
        agent.turn()
        until = time.monotonic() + 10
        while len(heard) == count and time.monotonic() < until:
            time.sleep(0.01)
        assert len(heard) > count
    finally:
        agent.end()
