"""Checks of Prefect tasks on ranks, with one server; says `ok NAME` for each that was passed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from uuid import UUID

import engine_checks
from engine_checks import PATIENCE, own_folder, run_all, wait_for
from prefect import flow
from prefect.cache_policies import INPUTS
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import Abort
from prefect.runtime import flow_run
from prefect.states import Cancelled
from prefect.task_runners import ThreadPoolTaskRunner

import shanty
from shanty.workflows.prefect import call, task


class WrongError(Exception):
    """Raised in a rank; its class is known to this file alone."""


def twice(number):
    return 2 * number


@task(ranks=2)
def double(number):
    assert "prefect" not in sys.modules, "the rank has loaded Prefect"
    return twice(number), shanty.size()


@task(ranks=2, name="the failing one")
def fail():
    if shanty.rank() == 1:
        raise WrongError("of rank 1")


@task(ranks=2, cache_policy=INPUTS, persist_result=True)
def cached(number):
    return number


fail_once = task(ranks=2, retries=2)(engine_checks.fail_once)
wait = task(ranks=2)(engine_checks.wait)


@flow
def waiting(folder, submitted):
    (Path(folder) / "flow").write_text(flow_run.get_id())
    return wait.submit(folder).result() if submitted else wait(folder)


def check_value():
    @flow
    def one():
        return double(3)

    assert one() == (6, 2)


def check_submit():
    @flow
    def one():
        return double.submit(4).result()

    assert one() == (8, 2)


def check_map():
    @flow(task_runner=ThreadPoolTaskRunner(max_workers=2))
    def several():
        return double.map([5, 1, 3]).result()

    assert several() == [(10, 2), (2, 2), (6, 2)]


def check_exception():
    @flow
    def one():
        fail()

    try:
        one()
    except WrongError as error:
        assert str(error) == "of rank 1"
        assert "rank 1" in error.__notes__[0]
    else:
        raise AssertionError("it is swallowed")
    assert fail.name == "the failing one"
    assert shanty.find("last").state == "failed"


def check_retry():
    marks = own_folder("marks")
    before = len(shanty.runs())

    @flow
    def one():
        return fail_once(str(marks))

    assert one() == 2
    assert len(shanty.runs()) == before + 2


def check_cache():
    before = len(shanty.runs())

    @flow
    def twice_the_same():
        return cached(1), cached(1), cached(2)

    assert twice_the_same() == (1, 1, 2)
    assert len(shanty.runs()) == before + 2


def check_function():
    """As tests of other people call a task's function: without Prefect."""
    assert double.fn(2) == (4, 2)


def check_call():
    plain = shanty.task(ranks=2)(twice)

    @flow
    def one():
        return call(plain, 21)

    assert one() == 42


def check_live():
    folder = own_folder("live")
    found = []
    thread = threading.Thread(target=lambda: found.append(waiting(str(folder), submitted=True)))
    thread.start()
    try:
        run = UUID(
            wait_for(lambda: (folder / "flow").exists() and (folder / "flow").read_text(), "")
        )
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
        with get_client(sync_client=True) as client:

            def lines():
                return [
                    each.message for each in client.read_logs(wanted, sort=LogSort.TIMESTAMP_ASC)
                ]

            wait_for(
                lambda: {"[0] waits", "[1] waits"} <= {*lines()}, "its lines in Prefect's logs"
            )
            assert thread.is_alive()
            wait_for(lambda: shanty.find("last").state == "running", "it is on")
            assert any(
                line.startswith(f"run {shanty.find('last').id}, 2 ranks") for line in lines()
            )
            kept = client.read_artifacts(flow_run_filter=FlowRunFilter(id={"any_": [run]}))
            assert [each.key for each in kept] == ["shanty-run"]
            assert shanty.find("last").id in kept[0].data
    finally:
        (folder / "go").touch()
        thread.join(PATIENCE)
    assert found == ["over"]


def cancelled(submitted):
    folder = own_folder(f"cancelled {submitted}")
    raised = []

    def whole():
        try:
            waiting(str(folder), submitted=submitted)
        except Abort as error:
            raised.append(error)

    thread = threading.Thread(target=whole)
    thread.start()
    id_file = folder / "flow"
    run_id = UUID(wait_for(lambda: id_file.exists() and id_file.read_text(), "the flow run"))
    before = {run.id for run in shanty.runs() if run.done}
    wait_for(lambda: [run for run in shanty.runs() if run.id not in before], "a run")
    run = shanty.find("last")
    wait_for(lambda: run.state == "running", "the run is on")
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run_id, Cancelled(), force=True)
    wait_for(lambda: run.done, "the run ends")
    assert run.state == "stopped", run.state
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert raised, "nobody is told"
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(run_id).state.is_cancelled()
        of_flow = FlowRunFilter(id={"any_": [run_id]})
        (of_task,) = client.read_task_runs(flow_run_filter=of_flow)
        assert of_task.state.is_cancelled(), of_task.state
    (folder / "go").touch()


def check_cancelled():
    cancelled(submitted=False)


def check_cancelled_thread():
    cancelled(submitted=True)


def main():
    run_all(globals())
