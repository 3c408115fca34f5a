"""Why ranks in a framework's rendezvous do not meet."""

from __future__ import annotations

from typing import Any

import pytest

from shanty.runtime.diagnosis.rendezvous import Meeting, explain

FIRST = Meeting("init", 0.0, 2, 0, "a:1")


def told(*more: dict[str, Any], ranks: int = 2) -> str:
    meetings = {n: FIRST._replace(place=n)._replace(**each) for n, each in enumerate(more)}
    found = explain(meetings, ranks)
    assert found is None or found[1]
    return found[0] if found is not None else ""


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        (({}, {}), ""),
        (({}, {"what": "another"}), ""),
        (({"size": 4}, {"size": 4}), "ranks 0, 1 wait in init for 4 ranks, and this run has 2"),
        (
            ({"size": 2}, {"size": 1}),
            "ranks wait in init for different numbers of ranks: rank 0 waits for 2, "
            "rank 1 waits for 1",
        ),
        (({}, {"place": 0}), "ranks 0, 1 both claim to be rank 0 in init"),
        (
            ({}, {"address": "b:1"}),
            "ranks look for each other in init at different addresses: rank 0 at a:1, "
            "rank 1 at b:1",
        ),
        (
            ({"address": "b:1", "origin": "MASTER_ADDR in x.py:2", "ours": "a:1"},) * 2,
            "ranks 0, 1 wait in init at b:1, which comes from MASTER_ADDR in x.py:2; "
            "shanty had set a:1",
        ),
        (({"size": 0, "place": -1, "address": ""},) * 2, ""),  # nothing is known
        (
            ({"keys": "'a'", "what": "TCPStore.get"},) * 2,
            "ranks 0, 1 wait in TCPStore.get for the key 'a', and no rank has set it",
        ),
        (
            ({"keys": "'a'"}, {"keys": "'b', 'c'"}),
            "rank 0 waits in init for the key 'a', rank 1 waits in init for the keys 'b', 'c', "
            "and no rank has set them",
        ),
        (
            ({"size": 3}, {"keys": "'a'", "what": "TCPStore.get", "size": 0}),
            "rank 0 waits in init for 3 ranks, and this run has 2",
        ),
        (({"serves": False},) * 2, "ranks 0, 1 wait in init at a:1, and none of them serves it"),
        (({"serves": False},), ""),  # the other one may serve it
        (({"serves": True}, {"serves": False, "size": 0}), ""),
        (({"serves": True},) * 2, "ranks 0, 1 both pass is_master=True to init"),
    ],
)
def test_why(ranks: tuple[dict[str, Any], ...], why: str) -> None:
    assert told(*ranks) == why
