"""Runs whose agents have nothing to begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from plans import plan_of
from shanty.runtime.controller import start
from shanty.runtime.errors import LaunchError
from shanty.runtime.run_status import conclude, read_status
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import State


def waiting(path: Path) -> RunDir:
    """A run that has just been given its hosts, but for their list."""
    run = RunDir(path / "run")
    run.create()
    write_json(run.plan, plan_of(2)._replace(waits=True).to_json())
    return run


@pytest.mark.parametrize("hosts", ["", "[", "[]", "{}", "3", '[{"address": "a"}]'])
def test_a_damaged_list_of_hosts(tmp_path: Path, hosts: str) -> None:
    run = waiting(tmp_path)
    (run.path / "hosts.json").write_text(hosts)
    assert start.main([str(run.path)]) == LaunchError.exit_code
    status = read_status(run)
    assert status.state is State.FAILED
    assert status.failure is not None and status.failure.what


def test_a_run_that_was_taken_out_of_its_queue_as_its_hosts_came(tmp_path: Path) -> None:
    run = waiting(tmp_path)
    conclude(run, State.STOPPED, None, 130)
    assert start.main([str(run.path)]) == 0
    assert read_status(run).state is State.STOPPED
