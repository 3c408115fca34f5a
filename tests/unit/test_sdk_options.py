"""What Python says of a run, as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shanty.runtime.errors import UsageError
from shanty.runtime.spec import Module
from shanty.sdk.submit import make_job

COMMAND = Module("m")
GIVEN = (
    ("time_limit", "2h", 7200.0),
    ("time_limit", 90, 90),
    ("memory_per_rank", "4G", 4 << 30),
    ("tags", ("a", "b"), ("a", "b")),
    ("env", {"A": 1}, {"A": "1"}),
    ("hostfile", Path("/h"), "/h"),
    ("mpi", None, None),
)


@pytest.mark.parametrize(("name", "value", "wanted"), GIVEN)
def test_values(tmp_path: Path, name: str, value: Any, wanted: Any) -> None:
    assert getattr(make_job(COMMAND, tmp_path, {name: value}), name) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": "2"}, "ranks must be a whole number, not '2'"),
        ({"oversubscribe": 1}, "oversubscribe must be true or false, not 1"),
        ({"tags": "night"}, "tags must be a list, not 'night'"),
        ({"rank": 2}, "there is no option 'rank'"),
        ({"ranks": 0}, "ranks"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_job(COMMAND, tmp_path, given)
