"""The controller of a run that never starts."""

from __future__ import annotations

import os
import time
from pathlib import Path

from plans import plan_of
from shanty.runtime.agent.channel import Channel
from shanty.runtime.agent.controller import Controller
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
