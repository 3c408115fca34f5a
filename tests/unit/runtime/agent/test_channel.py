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
