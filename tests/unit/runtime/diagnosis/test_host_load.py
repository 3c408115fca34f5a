"""What a host says of its links."""

from __future__ import annotations

import pytest

from shanty.runtime.diagnosis import host_load
from shanty.runtime.messages import Link


def test_a_link_that_is_full_in_both_directions_is_as_fast_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a link can do holds for each direction."""
    monkeypatch.setattr(host_load, "_carries", lambda _name: True)
    since = ({"eth0": (100, 400, 1)}, (0, 0), (5, 5))
    now = ({"eth0": (900, 1000, 3), "eth1": (0, 0, 0)}, (0, 0), (5, 9))
    load = host_load.look(since, now, 1.0)
    assert load.own == 4
    assert load.links == (
        Link("eth0", carries=True, used=True, bytes=800, errors=2),
        Link("eth1", carries=True, used=False, bytes=0, errors=0),
    )


def test_the_links_of_this_host() -> None:
    assert all(len(link) == 3 for link in host_load.counters((0, 0))[0].values())
