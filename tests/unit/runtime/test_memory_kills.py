"""A rank counts as ended for lack of memory only where the kernel's count or log is about it."""

from __future__ import annotations

import pytest

from shanty.runtime.node import memory_kills
from shanty.runtime.node.memory_kills import MemoryKills


@pytest.mark.parametrize("log", [True, False])
def test_ends_of_other_processes(monkeypatch: pytest.MonkeyPatch, log: bool) -> None:
    count, named = [5], {7}
    monkeypatch.setattr(memory_kills, "_count", lambda: count[0])
    monkeypatch.setattr(memory_kills, "_is_named", lambda pid: pid in named if log else None)
    kills = MemoryKills(0.0)
    assert not kills.has(7)
    count[0] += 1
    if log:
        assert not kills.has(8)
    assert kills.has(7)
    assert not kills.has(9)  # one end explains one rank
    count[0] += 1
    kills.tick(11.0)
    kills.tick(22.0)
    assert not kills.has(7)  # it was some other process, long ago


def test_the_log_of_this_machine() -> None:
    assert memory_kills._is_named(1) in (False, None)
