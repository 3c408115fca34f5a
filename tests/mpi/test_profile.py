"""The profile of real runs: all ranks, one beside the other, below the launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from chrome_trace import read, rows, spans
from runs import WORKERS, Shanty

pytestmark = pytest.mark.mpi


def test_both_ranks_take_part_in_each_allreduce_at_once(shanty: Shanty) -> None:
    pytest.importorskip("torch")
    script = shanty.script((WORKERS / "hvd_profile.py").read_text())
    done = shanty("run", "-q", "-n", 2, "--profile", script)
    assert done.returncode == 0, done.stderr
    found = rows(read(shanty.last.profile))
    launch, *ranks = found
    assert launch == "launch"
    assert [name.partition(" on ")[0] for name in ranks] == ["rank 0", "rank 1"]
    phases = [event["name"] for event in found["launch"]["phases"]]
    assert phases == ["submitted", "starting", "running"]
    one, two = (found[name] for name in ranks)
    for name in (*(f"allreduce.step.{number}" for number in range(30)), "allreduce.again"):
        ((since, until),) = spans(one[name], "MPI_ALLREDUCE")
        ((other_since, other_until),) = spans(two[name], "MPI_ALLREDUCE")
        assert max(since, other_since) <= min(until, other_until), name
        for rank in (one, two):
            ((began, ended),) = spans(rank["process"], "program")
            assert began < since < until < ended + 1e5
    assert [path.name for path in shanty.last.artifacts.iterdir()] == ["profile.json"]


def test_without_collectives_there_is_the_launch(shanty: Shanty, tmp_path: Path) -> None:
    (shanty.folder / "shanty.toml").write_text("[run]\nprofile = true\n")
    done = shanty("run", "-q", "-n", 2, "--", "sh", "-c", "exit $RANK")
    assert done.returncode == 1
    found = rows(read(shanty.last.profile))
    (first, second) = (found[name]["process"] for name in list(found)[1:])
    assert [event["args"] for event in second if event["name"] == "program"] == [{"code": 1}]
    assert len(spans(first, "program")) == 1
    assert "failure" in [event["name"] for event in found["launch"]["events"]]


def test_only_where_it_is_asked_for(shanty: Shanty) -> None:
    assert shanty("run", "-q", "-n", 1, "--", "true").returncode == 0
    assert not shanty.last.profile.exists()
