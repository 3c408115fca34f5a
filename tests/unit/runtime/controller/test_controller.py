"""The controller of a run that never starts."""

from __future__ import annotations

import os
import time
from pathlib import Path

from plans import node, plan_of
from runs import wait_for
from shanty.runtime.channel import Channel
from shanty.runtime.controller.controller import Controller
from shanty.runtime.controller.worker_links import WorkerLinks
from shanty.runtime.messages import Flush, RankReport, Report
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir


def make_controller(path: Path, plan: Plan) -> Controller:
    """One of a run that may have three attempts; whatever it tells its node agent is lost."""
    run = RunDir(path / "run")
    run.create()
    controller = Controller(run, plan._replace(limits=plan.limits._replace(retries=2)))
    controller.agent = Channel(*os.pipe())
    return controller


def of_two_hosts() -> Plan:
    """A plan whose second host is lost at once."""
    plan = plan_of(2)
    nodes = (plan.lead, node(1, connection={"kind": "exec", "argv": ["true"]}))
    return plan._replace(attempt=plan.attempt._replace(nodes=nodes))


def test_the_start_timeout_is_the_attempts_and_the_time_limit_the_runs(tmp_path: Path) -> None:
    for limit in (None, 1800.0):
        plan = plan_of(2)
        plan = plan._replace(limits=plan.limits._replace(time_limit=limit))
        controller = make_controller(tmp_path / str(limit), plan)
        controller.run_began -= 3600.0  # it has had an attempt of an hour
        controller.judge(time.monotonic())
        failure = controller.outcome.failure
        assert (failure is None) is (limit is None)
    assert failure is not None and "time limit" in failure.what


def test_a_lost_host_comes_before_a_rank_that_its_mpi_ended(tmp_path: Path) -> None:
    """Both are known when it is judged: the host was found out while the rank was in doubt."""
    controller = make_controller(tmp_path, of_two_hosts())
    for rank, host in enumerate(("lab0", "lab1")):
        report = Report({"event": "started", "rank": rank, "size": 2})
        controller.heard(RankReport(report, 0.0), host)
    report = Report({"event": "exited", "rank": 0, "code": 14})
    controller.heard(RankReport(report, 0.0), "lab0")
    workers = controller.workers = WorkerLinks(controller.run_dir, controller.plan, controller)

    def is_cut_off() -> bool:
        for fd in workers.sources:
            workers.serve(fd)
        return not workers.sources

    wait_for(is_cut_off, 10)
    controller.judge(time.monotonic() + 60)
    assert controller.outcome.failure is not None
    assert controller.outcome.failure.host == "lab1"
    assert controller.outcome.may_try_again(folder_lost=False)
    workers.close()


def test_a_host_is_lost_that_takes_no_word_any_more(tmp_path: Path) -> None:
    """Its agent died, and a word to it could not be written before its end was read."""
    controller = make_controller(tmp_path, of_two_hosts())
    workers = controller.workers = WorkerLinks(controller.run_dir, controller.plan, controller)
    (pid,) = workers.pids()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    controller.tell(Flush("0"))
    assert not workers.sources
    controller.judge(time.monotonic())
    failure = workers.dismiss(comes_again=False, interrupted=lambda: False)
    workers.close()
    assert failure is not None and failure == controller.outcome.failure
    assert failure.host == "lab1"
