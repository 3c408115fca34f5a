"""Locks: one holder at a time, and no file that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.launch import lock
from shanty.runtime.errors import UsageError


@pytest.mark.parametrize("folder", [True, False])
def test_one_holds_a_lock(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "there" / "lock"
    if folder:
        path.mkdir(parents=True)
    assert not lock.is_locked(path)
    with lock.exclusive_lock(path, UsageError("held")):
        assert lock.is_locked(path)
        assert lock.take(path) is None
        with pytest.raises(UsageError, match="held"), lock.exclusive_lock(path, UsageError("held")):
            pass
    assert path.exists() == folder
    with lock.held(path):
        assert lock.is_locked(path)
    assert not lock.is_locked(path)
