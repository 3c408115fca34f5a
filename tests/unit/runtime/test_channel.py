"""Messages between the agents."""

from __future__ import annotations

import os

from shanty.runtime.channel import Channel
from shanty.runtime.messages import Alive, Beat, Gone, Malformed, Unready


def test_last_words_are_heard_after_writing_has_failed():
    """The other end says goodbye and leaves while we write to it."""
    (source, their_sink), (their_source, sink) = os.pipe(), os.pipe()
    ours, theirs = Channel(source, sink), Channel(their_source, their_sink)
    theirs.send(Gone(()))
    os.close(their_sink)
    os.close(their_source)
    ours.send(Alive())
    assert not ours.open
    assert ours.receive() == [Gone(())]
    os.close(source)
    os.close(sink)


def test_a_channel_never_waits_for_its_peer() -> None:
    """A peer that does not read (it is cut off) must not hold up the one that writes."""
    (source, their_sink), (their_source, sink) = os.pipe(), os.pipe()
    ours, theirs = Channel(source, sink), Channel(their_source, their_sink)
    message = Unready("x" * 1000)
    for _ in range(500):  # many times what a pipe holds
        ours.send(message)
    assert ours.open
    assert ours.unsent > 0
    heard = 0
    while heard < 500:
        heard += len(theirs.receive())
        ours.flush()
    assert ours.unsent == 0
    ours.close()
    theirs.close()


def test_what_a_shell_prints_is_passed_over_and_a_damaged_message_is_told() -> None:
    (source, their_sink), (their_source, sink) = os.pipe(), os.pipe()
    ours, theirs = Channel(source, sink), Channel(their_source, their_sink)
    os.write(their_sink, b"Welcome!\n[lab1] 3 users\n\n")
    theirs.send(Beat(1.0))
    os.write(their_sink, b'["Beat", "soon"]\n["Beat"')
    assert ours.receive() == [Beat(1.0), Malformed("'soon' is not a number")]
    os.write(their_sink, b", 2.0]\n")
    first, second = ours.receive(), Beat(3.0)
    theirs.send(second)
    ours.put_back(first)
    assert ours.receive() == [Beat(2.0), second]
    ours.close()
    theirs.close()
