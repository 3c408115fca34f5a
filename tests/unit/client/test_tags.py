"""Tags of runs that are there: also of those that have ended, which the index knows already."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import make_run
from shanty.client.tags import retag
from shanty.launch.index import Runs
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import NotFoundError, UsageError


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path, Targets(Surroundings(tmp_path, {}, Settings())))


def test_tags_are_put_on_and_taken_off(runs: Runs, tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, tags=("a", "b"))
    assert runs.entries()[0].tags == ("a", "b")
    assert retag(runs, run, add=("c", "a")) == ("a", "b", "c")
    assert retag(runs, run, remove=("a",)) == ("b", "c")
    assert runs.entries()[0].tags == ("b", "c")
    with pytest.raises(UsageError, match="has no tag a") as error:
        retag(runs, run, remove=("a",))
    assert error.value.fix == "it has b, c"


def test_a_damaged_job_takes_no_tags(runs: Runs, tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    run.job.write_text("{")
    with pytest.raises(NotFoundError, match="missing or damaged"):
        retag(runs, run, add=("a",))
