"""Runs as their host knows them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from shanty.runtime.rpc.runs import heartbeat_age


def test_a_worker_that_is_done_is_told_from_one_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    ask = {"run": "20260101-000000-aaaa", "index": 1}
    assert heartbeat_age(ask, io.BytesIO(), print) == {"age": None, "left": True}
    (tmp_path / "work" / "20260101-000000-aaaa.1").mkdir(parents=True)
    assert heartbeat_age(ask, io.BytesIO(), print) == {"age": None, "left": False}
