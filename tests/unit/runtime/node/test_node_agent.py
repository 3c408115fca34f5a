"""The node agent: ends of its children."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from shanty.runtime.node import resource_sampler
from shanty.runtime.node.node_agent import NodeAgent


def test_a_rank_that_stops_when_nobody_waits_for_it_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a look has left behind is no end of a child."""
    trap = 5 << 8 | 0x7F
    told = iter([(11, trap), (12, 3 << 8), (0, 0)])
    monkeypatch.setattr(os, "waitpid", lambda *_: next(told))
    agent: Any = SimpleNamespace(ended=[])
    agent.child_ended = lambda pid, code: agent.ended.append((pid, code))
    NodeAgent._reap(agent)
    assert agent.ended == [(12, 3)]


def test_a_kernel_that_says_nonsense_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told once, and not asked again."""
    asked = []

    def nonsense(now: float) -> None:
        asked.append(now)
        raise ValueError("cpu0 many")

    monkeypatch.setattr(resource_sampler, "ResourceSampler", nonsense)
    agent: Any = SimpleNamespace(resources=None, _unsampled_until=5.0)
    for now in (4.0, 5.0, 6.0):
        NodeAgent._sample(agent, now)
    assert asked == [5.0]
    assert capsys.readouterr().err == "no samples of this host: cpu0 many\n"
