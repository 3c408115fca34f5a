"""Finding out where many runs stand, some of them on hosts that do not answer."""

from __future__ import annotations

import resource
import shutil
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from shanty.launch.cluster.run_mirror import RunMirror
from shanty.launch.host import Host
from shanty.launch.index import Runs
from shanty.launch.run_query import Query
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import JobSpec, Script, State, Status
from sshd import free_port

COUNT = 5


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH on this machine")
def test_runs_that_do_not_answer_are_asked_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an answer before all have been asked."""
    for number in range(COUNT):
        run = RunDir(tmp_path / "runs" / f"20240101-00000{number}-bcdf")
        run.create()
        write_json(run.job, JobSpec(Script("train.py")).to_json())
        write_json(run.status, Status(State.RUNNING, 1, created=1.0).to_json())
        write_json(run.site, {"hosts": [asdict(Host("127.0.0.1", port=free_port()))]})
    asked: list[RunMirror] = []
    asked_before_each_wait: list[int] = []
    start, status = RunMirror.start, RunMirror.status

    def seen_start(self: RunMirror) -> RunMirror:
        asked.append(self)
        return start(self)

    def seen_status(self: RunMirror, patience: float) -> Status:
        asked_before_each_wait.append(len(asked))
        return status(self, patience)

    monkeypatch.setattr(RunMirror, "start", seen_start)
    monkeypatch.setattr(RunMirror, "status", seen_status)
    entries = Runs(tmp_path, Targets(Surroundings(tmp_path, {}, Settings()))).entries()
    assert [entry.status.state for entry in entries] == [State.RUNNING] * COUNT
    assert asked_before_each_wait == [COUNT] * COUNT
    for link in asked:
        link.close()
    assert threading.active_count() == 1


def test_an_older_look_does_not_undo_a_runs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes look at the same time, and one may write down later what it saw before."""
    run = RunDir(tmp_path / "runs" / "20240101-000000-bcdf")
    run.create()
    write_json(run.job, JobSpec(Script("train.py")).to_json())
    write_json(run.status, Status(State.SUCCEEDED, 1, created=1.0, ended=2.0).to_json())
    runs = Runs(tmp_path, Targets(Surroundings(tmp_path, {}, Settings())))
    (ended,) = runs.entries()
    older = replace(ended, status=Status(State.RUNNING, 1, created=1.0))
    monkeypatch.setattr(Runs, "read", lambda _self, _runs: [older])
    assert runs.reread([run]) == []
    assert runs.on() == []
    assert runs.known([run.id]) == [ended]


@pytest.mark.parametrize("room", [20_000, 40_000])  # not to open it, not to write into it
def test_no_room_for_the_index(tmp_path: Path, room: int) -> None:
    """Runs are listed all the same, also page by page."""
    targets = Targets(Surroundings(tmp_path, {}, Settings()))
    Runs(tmp_path, targets).entries()  # it is there, and can be opened
    ids = [f"20240101-00000{number}-bcdf" for number in range(COUNT)]
    for run in (RunDir(tmp_path / "runs" / each) for each in ids):
        run.create()
        write_json(run.job, JobSpec(Script("train.py", args=("x" * 9000,))).to_json())
        write_json(run.status, Status(State.SUCCEEDED, 1, created=1.0, ended=2.0).to_json())
    runs = Runs(tmp_path, targets)
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        assert [entry.id for entry in runs.entries()] == ids
        assert [entry.id for entry in runs.page(Query())[0]] == ids[::-1]
        assert runs.refresh().entries == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_value_that_may_be_waited_for_stays(tmp_path: Path) -> None:
    """Runs of tasks are not deleted in the moment in which they end."""
    now = time.time()
    for number, ended in enumerate((now - 100, now - 1)):
        run = RunDir(tmp_path / "runs" / f"20240101-00000{number}-bcdf")
        run.create()
        run.results.mkdir(parents=True)
        write_json(run.job, JobSpec(Script("train.py")).to_json())
        write_json(run.status, Status(State.SUCCEEDED, 1, created=1.0, ended=ended).to_json())
    runs = Runs(tmp_path, Targets(Surroundings(tmp_path, {}, Settings())))
    assert runs.prune(0, unread=60.0) == ["20240101-000000-bcdf"]
    assert runs.prune(0) == ["20240101-000001-bcdf"]
