"""A run's folder that is removed while the run is on."""

from __future__ import annotations

import shutil
from pathlib import Path

from shanty.runtime.folder_watch import RunFolder
from shanty.runtime.run_status import conclude
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import Failure, State


def test_the_folder_is_removed(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "20260101-000000-bbbb")
    run.create()
    for path in (run.plan, run.agents, run.status):
        write_json(path, {})
    folder = RunFolder(run)
    assert not folder.is_lost
    for path in (run.plan, run.status):  # no damaged file loses a run
        path.unlink()
        assert not folder.is_lost
        assert folder.failure() is None
    shutil.rmtree(tmp_path / "runs")
    run.logs.mkdir(parents=True)  # a rank has put its log back
    write_json(run.status, {})  # and the controller its status
    failure = folder.failure()
    assert failure is not None
    assert str(run.path) in failure.what
    assert run.asks.is_dir()  # so that it can be stopped


def test_a_run_that_is_lost_without_its_folder(tmp_path: Path) -> None:
    """What its agents then say is a consequence; and it has not lasted since 1970."""
    run = RunDir(tmp_path / "runs" / "20260101-000000-bbbb")
    status = conclude(run, State.LOST, Failure("the run's agent never came up"), 75)
    assert status.failure is not None
    assert status.failure.what.endswith(f"was removed during the run: {run.path}")
    assert status.took() == 0
    shutil.rmtree(run.path, ignore_errors=True)
    run.path.mkdir(parents=True)
    write_json(run.job, {})
    found = conclude(run, State.LOST, Failure("the run's agent never came up"), 75)
    assert found.failure == Failure("the run's agent never came up")
