"""What a worker is asked for beside being a node agent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shanty.runtime.node import worker_agent
from shanty.runtime.run_agents import agents_record
from shanty.runtime.rundir import RunDir, write_json


def test_what_was_not_sent_survives_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node agent, frozen a moment ago, does not: it would sweep up after the next attempt."""
    run = RunDir(tmp_path / "r.1")
    run.create()
    (run.artifacts / "model.bin").write_bytes(b"weights")
    run.rank_log(1).write_text("the last words")
    run.metrics.write_text("{}\n")  # those lines that were sent would come twice
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as frozen:
        write_json(run.agents, agents_record(node_agent=frozen.pid))
        monkeypatch.setenv("SSH_ORIGINAL_COMMAND", f"worker_agent {run.path} reset")
        assert worker_agent.main([str(run.path)]) == 0
        assert frozen.wait(10) == -9
    assert (run.artifacts / "model.bin").read_bytes() == b"weights"
    assert run.rank_log(1).exists()
    assert not run.agents.exists() and not run.metrics.exists()
