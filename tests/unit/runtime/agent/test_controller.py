"""The controller of a run that never starts."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from plans import plan_of
from shanty.runtime.agent.channel import Channel
from shanty.runtime.agent.controller import Controller
from shanty.runtime.agent.worker import Worker
from shanty.runtime.agent.workers import Workers
from shanty.runtime.errors import LaunchError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure


def make_controller(path: Path) -> Controller:
    """One of a run that may have three attempts; whatever it tells its node agent is lost."""
    run = RunDir(path / "run")
    run.create()
    plan = plan_of(2)
    controller = Controller(run, plan._replace(limits=plan.limits._replace(retries=2)))
    controller.agent = Channel(*os.pipe())
    return controller


def test_a_run_that_is_stopped_while_it_fails_is_not_tried_again(tmp_path: Path) -> None:
    controller = make_controller(tmp_path)
    controller.failure, controller.code = Failure("a host is lost"), LaunchError.exit_code
    assert controller._may_try_again()
    controller._stop("stopped", 5.0)
    assert not controller._may_try_again()
    assert controller.failure is not None and controller.stopped is None  # why it ended stays


def test_the_start_timeout_is_the_attempts_and_the_time_limit_the_runs(tmp_path: Path) -> None:
    controller = make_controller(tmp_path)
    controller.run_began -= 3600.0  # it has had an attempt of an hour
    controller._judge(time.monotonic())
    assert controller.failure is None
    limits = controller.plan.limits._replace(time_limit=1800.0)
    controller.plan = controller.plan._replace(limits=limits)
    controller._judge(time.monotonic())
    assert controller.failure is not None
    assert "time limit" in controller.failure.what


def test_a_lost_host_comes_before_a_rank_that_its_mpi_ended(tmp_path: Path) -> None:
    """Both are known when it is judged: the host was found out while the rank was in doubt."""
    controller = make_controller(tmp_path)
    for rank, host in enumerate(("lab1", "lab2")):
        controller._report({"event": "started", "rank": rank, "size": 2, "host": host})
    controller._report({"event": "exited", "rank": 0, "code": 14, "host": "lab1"})
    controller.workers = Workers(controller)
    controller.workers.failure = Failure("host lab2 is lost", host="lab2")
    controller._judge(time.monotonic() + 60)
    assert controller.failure is not None
    assert controller.failure.what == "host lab2 is lost"
    assert controller._may_try_again()


def test_a_host_is_lost_that_takes_no_word_any_more(tmp_path: Path) -> None:
    """Its agent died, and a word to it could not be written before its end was read."""
    controller = make_controller(tmp_path)
    controller.workers = Workers(controller)
    with subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.wait()
        way = {"kind": "exec", "argv": ["true"]}
        node = controller.plan.attempt.nodes[0]._replace(name="lab2", connection=way)
        worker = Worker(node, process)
        worker.state = "ready"
        controller.workers.workers.append(worker)
        controller.tell(flush="0")
        assert not worker.channel.open
        controller._judge(time.monotonic())
        controller.workers.dismiss("for good")
    assert controller.failure is not None
    assert controller.failure.host == "lab2"
