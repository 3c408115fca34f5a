"""Finding out where many runs stand, some of them on hosts that do not answer."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import make_run
from shanty.launch.index import Runs
from shanty.launch.run_mirror import RunMirror
from shanty.launch.run_query import Query
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime import site
from shanty.runtime.rundir import write_json
from shanty.runtime.site import Host, Site
from shanty.runtime.spec import JobSpec, Script, State, Status
from sshd import free_port

COUNT = 5


def runs_in(home: Path) -> Runs:
    return Runs(home, Targets(Surroundings(home, {}, Settings())))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH on this machine")
def test_runs_that_do_not_answer_are_asked_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an answer before all have been asked."""
    for number in range(COUNT):
        run = make_run(tmp_path, number, State.RUNNING)
        site.write(run, Site(hosts=(Host("127.0.0.1", port=free_port()),)))
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
    entries = runs_in(tmp_path).entries()
    assert [entry.status.state for entry in entries] == [State.RUNNING] * COUNT
    assert asked_before_each_wait == [COUNT] * COUNT
    for link in asked:
        link.close()
    assert not [link for link in asked if link._thread.is_alive()]


AT_THE_END = """
import atexit, sys, time
from pathlib import Path
from shanty.launch.index import Runs
from shanty.launch.settings import Settings
from shanty.launch.surroundings import Surroundings
from shanty.launch.targets.registry import Targets

home = Path(sys.argv[1])
runs = Runs(home, Targets(Surroundings(home, {}, Settings())))
print(runs.entries()[0].status.state.value, flush=True)
atexit.register(time.sleep, 2)  # the thread that asks the hosts goes on, and can start no other
"""


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH on this machine")
def test_hosts_are_still_asked_when_the_program_ends(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, State.RUNNING)
    site.write(run, Site(hosts=tuple(Host("127.0.0.1", port=free_port()) for _ in range(2))))
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, tmp_path], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("running\n", "")


def test_an_older_look_does_not_undo_a_runs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes look at the same time, and one may write down later what it saw before."""
    run = make_run(tmp_path, 0)
    runs = runs_in(tmp_path)
    (ended,) = runs.entries()
    older = replace(ended, status=Status(State.RUNNING, 1, created=1.0))
    monkeypatch.setattr(Runs, "read", lambda _self, _runs: [older])
    assert runs.reread([run]) == []
    assert runs.on() == []
    assert runs.known([run.id]) == [ended]


@pytest.mark.parametrize("room", [20_000, 40_000])  # not to open it, not to write into it
def test_no_room_for_the_index(tmp_path: Path, room: int) -> None:
    """Runs are listed all the same, also page by page."""
    runs_in(tmp_path).entries()  # it is there, and can be opened
    large = JobSpec(Script("train.py", args=("x" * 9000,))).to_json()
    made = [make_run(tmp_path, number) for number in range(COUNT)]
    for run in made:
        write_json(run.job, large)
    ids = [run.id for run in made]
    runs = runs_in(tmp_path)
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
    made = [make_run(tmp_path, n, ended=now - ago) for n, ago in enumerate((100, 1))]
    for run in made:
        run.results.mkdir(parents=True)
    runs = runs_in(tmp_path)
    assert runs.prune(0, unread=60.0) == [made[0].id]
    assert runs.prune(0) == [made[1].id]
