"""How long another has not been heard."""

import time

from shanty.carry.agent.silence import Silence


def test_a_gap_between_two_looks_is_not_the_others_silence() -> None:
    silence = Silence()
    begun = time.monotonic()
    assert silence.look(begun + 0.5) < 1
    assert silence.look(begun + 100) < 2  # the machine stood still
    for half in range(1, 40):
        seconds = silence.look(begun + 100 + half / 2)
    assert 19 < seconds < 22
    silence.broken()
    assert silence.seconds == 0
    assert silence.since >= begun
