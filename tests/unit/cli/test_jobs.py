"""The variables of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.cli import jobs
from shanty.runtime.errors import NotFoundError, UsageError


def test_environment_variables() -> None:
    given = ["A=1", "B=", "C=x=y ' z", "HOME", "UNSET", "A=2"]
    assert jobs.environment(given, [], {"HOME": "/home/ann"}) == {
        "A": "2",
        "B": "",
        "C": "x=y ' z",
        "HOME": "/home/ann",
    }
    for bad in ("=1", "A B=1", " =", "A\nB=1"):
        with pytest.raises(UsageError, match="no KEY=VALUE"):
            jobs.environment([bad], [], {})


def test_env_files(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# words\n\nexport A=1\n B = two words \nC='a b'\nD=\"\"\nE='x\nUSER\nNONE\n")
    assert jobs.environment(["A=9"], [file], {"USER": "ann"}) == {
        "A": "9",
        "B": "two words",
        "C": "a b",
        "D": "",
        "E": "'x",
        "USER": "ann",
    }
    file.write_text("A=1\n=2\n")
    with pytest.raises(UsageError, match=r"env:2: '=2'"):
        jobs.environment([], [file], {})
    file.write_bytes(b"A=\xff\n")
    with pytest.raises(NotFoundError):
        jobs.environment([], [file], {})
