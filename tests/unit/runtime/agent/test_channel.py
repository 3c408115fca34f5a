"""Messages between the agents."""

from __future__ import annotations

import os

from shanty.runtime.agent.channel import Channel


def test_last_words_are_heard_after_writing_has_failed():
    """The other end says goodbye and leaves while we write to it."""
    (source, their_sink), (their_source, sink) = os.pipe(), os.pipe()
    ours, theirs = Channel(source, sink), Channel(their_source, their_sink)
    theirs.send(gone=[])
    os.close(their_sink)
    os.close(their_source)
    ours.send(alive=True)
    assert not ours.open
    assert ours.receive() == [{"gone": []}]
    os.close(source)
    os.close(sink)


def test_a_channel_never_waits_for_its_peer() -> None:
    """A peer that does not read (it is cut off) must not hold up the one that writes."""
    (source, their_sink), (their_source, sink) = os.pipe(), os.pipe()
    ours, theirs = Channel(source, sink), Channel(their_source, their_sink)
    text = "x" * 1000
    for _ in range(500):  # many times what a pipe holds
        ours.send(text=text)
    assert ours.open
    assert ours.unsent > 0
    heard = 0
    while heard < 500:
        heard += len(theirs.receive())
        ours.flush()
    assert ours.unsent == 0
    ours.close()
    theirs.close()
