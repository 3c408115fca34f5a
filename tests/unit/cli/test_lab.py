"""The command line of labs."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.cli.lab import down
from shanty.runtime.errors import UsageError


def test_what_has_no_name_of_a_lab_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    (tmp_path / "lab").mkdir()
    (tmp_path / "precious").touch()
    for name in ("..", ".", ""):
        with pytest.raises(UsageError):
            down.callback(name)  # type: ignore[misc]
    assert (tmp_path / "precious").exists()
