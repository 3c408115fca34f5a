"""What sees a run on Kubernetes through, where it cannot begin or is not to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shanty.launch.targets.kubernetes_watcher import ASKED_TO_STOP, AWAY, RECORD
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import JobSpec, Script, State, Status

pytest.importorskip("kubernetes")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that was begun with a kubeconfig of its own; no such cluster answers."""
    config = tmp_path / "config"
    context = {"name": "here", "context": {"cluster": "c", "user": "u"}}
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    user = {"name": "u", "user": {"token": "t"}}
    text = {"contexts": [context], "clusters": [cluster], "users": [user]}
    config.write_text(json.dumps({**text, "current-context": "here"}))
    made = RunDir(tmp_path / "20261125-120000-abcd")
    made.create()
    job = JobSpec(Script("train.py"), ranks=2, image="example/any:1")
    write_json(made.job, job.to_json())
    write_json(made.site, {"target": "k8s", "place": "here/team", "kubeconfig": str(config)})
    write_json(made.status, Status.new(2).to_json())
    return made


def watched(run: RunDir) -> int:
    words = [sys.executable, "-m", "shanty.launch.targets.kubernetes_watcher", str(run.path)]
    return subprocess.run(
        words, timeout=60, env={**os.environ, "KUBECONFIG": "/nowhere"}
    ).returncode


def test_a_run_that_was_stopped_before_it_began(run: RunDir) -> None:
    (run.path / ASKED_TO_STOP).touch()
    assert watched(run) == 0
    assert read_status(run).state is State.STOPPED
    assert "tried" not in (read_json(run.site) or {})


def test_a_cluster_that_is_not_known_any_more(run: RunDir) -> None:
    """The run may be well: it is told since when we cannot see, and when we look again."""
    Path((read_json(run.site) or {})["kubeconfig"]).unlink()
    assert watched(run) == 70
    away = read_json(run.path / AWAY) or {}
    assert "no Kubernetes cluster is configured" in away["what"]
    assert away["again"] > away["since"]
    assert watched(run) == 70
    assert (read_json(run.path / AWAY) or {})["since"] == away["since"]
    assert not read_status(run).state.final


def test_one_watches_at_a_time(run: RunDir) -> None:
    import fcntl

    with (run.path / "watcher.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert watched(run) == 0
    assert not (run.path / RECORD).exists()
