"""How long another has not been heard, and what is said so that one is heard."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from runs import wait_for
from shanty.runtime import heartbeat, platform
from shanty.runtime.heartbeat import MOST, FailureDetector, Heartbeat

linux = pytest.mark.skipif(not platform.LINUX, reason="Linux only")


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
    monkeypatch.setattr(heartbeat, "_BUSY", 0.5)
    heard: list[float] = []
    several = threading.Event()

    def say() -> None:
        heard.append(time.monotonic())
        if len(heard) > 5:
            several.set()

    agent = Heartbeat(say, every=0.01)
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


def silent_for(silence: FailureDetector, seconds: float) -> float:
    """How many of so many seconds, looked at twice each, pass until the other counts as gone."""
    begun = silence.since
    for half in range(1, int(2 * seconds) + 1):
        if silence.is_over(begun + half / 2, 10.0):
            return half / 2
    return float("inf")


def test_words_that_come_late_allow_for_more_silence() -> None:
    assert 10 < silent_for(FailureDetector(), 30) < 11
    silence = FailureDetector()
    for half in range(1, 13):
        silence.look(silence.since + half / 2)
    silence.heard()  # after 6 s
    assert 18 < silent_for(silence, 30) < 19
    silence.heard()
    assert silence.patience(10.0) <= MOST
    silence.seconds = 1000.0
    silence.heard()
    assert silence.patience(10.0) == MOST


@linux
def test_a_process_that_waits_for_a_core_is_not_frozen() -> None:
    """A stopped one is, and after a minute any is."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_for(lambda: platform.thread_states(busy.pid) == ["R"])
        assert silent_for(FailureDetector(busy.pid), 40) == float("inf")
        assert MOST < silent_for(FailureDetector(busy.pid), 100) < MOST + 1
        os.kill(busy.pid, signal.SIGSTOP)
        wait_for(lambda: platform.thread_states(busy.pid) == ["T"])
        assert 10 < silent_for(FailureDetector(busy.pid), 40) < 11
    finally:
        busy.kill()
        busy.wait()
    assert 10 < silent_for(FailureDetector(busy.pid), 40) < 11
