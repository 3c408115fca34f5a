"""Checks of Dagster ops and assets on ranks; says `ok NAME` for each that was passed."""

import sys
import threading
from pathlib import Path

import dagster as dg
import engine_checks
from engine_checks import PATIENCE, own_folder, run_all, wait_for

import shanty
from shanty.workflows.dagster import call, ranks_asset, ranks_op


class WrongError(Exception):
    """Raised in a rank; its class is known to this file alone."""


def twice(number):
    return 2 * number


@dg.asset
def number() -> int:
    return 3


@ranks_asset(ranks=2, description="a doubled number")
def double(number: int) -> int:
    assert "dagster" not in sys.modules, "the rank has loaded Dagster"
    return twice(number) + shanty.size()


@ranks_op(ranks=2)
def fail():
    if shanty.rank() == 1:
        raise WrongError("of rank 1")


class Marks(dg.Config):
    folder: str


@dg.op
def folder(config: Marks) -> str:
    return config.folder


@dg.op(out=dg.DynamicOut(int))
def numbers():
    for each in (5, 1, 3):
        yield dg.DynamicOutput(each, mapping_key=str(each))


@ranks_op(ranks=2)
def double_op(number: int) -> int:
    return twice(number)


again = dg.RetryPolicy(max_retries=2)
fail_once = ranks_op(ranks=2, retry_policy=again)(engine_checks.fail_once)
wait = ranks_op(ranks=2)(engine_checks.wait)


@dg.job
def failing():
    fail()


@dg.job
def retrying():
    fail_once(folder())


@dg.job
def mapping():
    numbers().map(double_op)


@dg.job
def waiting():
    wait(folder())


def config(path):
    return {"ops": {"folder": {"config": {"folder": str(path)}}}}


def check_asset():
    made = dg.materialize([number, double])
    assert made.output_for_node("double") == 8
    (event,) = made.asset_materializations_for_node("double")
    kept = event.metadata["shanty_run"].value
    assert shanty.find(kept).state == "succeeded"
    assert double.descriptions_by_key[dg.AssetKey("double")] == "a doubled number"


def check_exception():
    try:
        failing.execute_in_process()
    except WrongError as error:
        assert str(error) == "of rank 1"
        assert "rank 1" in error.__notes__[0]
    else:
        raise AssertionError("it is swallowed")
    assert shanty.find("last").state == "failed"


def check_retry():
    before = len(shanty.runs())
    with dg.DagsterInstance.ephemeral() as instance:
        made = retrying.execute_in_process(config(own_folder("marks")), instance=instance)
    assert made.output_for_node("fail_once") == 2
    assert len(shanty.runs()) == before + 2


def check_map():
    made = mapping.execute_in_process()
    assert made.output_for_node("double_op") == {"5": 10, "1": 2, "3": 6}


def check_call():
    plain = shanty.task(ranks=2)(twice)
    days = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=days)
    def word(context: dg.AssetExecutionContext) -> str:
        return call(plain, context.partition_key)

    made = dg.materialize([word], partition_key="b")
    assert made.output_for_node("word") == "bb"
    (event,) = made.asset_materializations_for_node("word")
    assert event.metadata["shanty_run"].value == shanty.find("last").id


def check_function():
    """As tests of other people call an op: without a job."""
    assert double_op(2) == 4


def check_live():
    """Its lines are in the compute log, which the pages of Dagster show, before it ends."""
    place = own_folder("live")
    instance = dg.DagsterInstance.get()
    logs = Path(instance.storage_directory())
    found = []

    def whole():
        found.append(waiting.execute_in_process(config(place), instance=instance))

    thread = threading.Thread(target=whole)
    thread.start()

    def text(kind):
        return "".join(path.read_text() for path in logs.rglob(f"*.{kind}"))

    try:
        wait_for(lambda: "[0] waits\n" in text("out") and "[1] waits\n" in text("out"), "stdout")
        wait_for(lambda: "[1] so it does\n" in text("err"), "stderr")
        assert thread.is_alive()
        wait_for(lambda: shanty.find("last").state == "running", "it is on")
        (job,) = instance.get_run_records(limit=1)
        events = instance.all_logs(job.dagster_run.run_id)
        assert any(shanty.find("last").id in each.message for each in events)
    finally:
        (place / "go").touch()
        thread.join(PATIENCE)
    assert found[0].output_for_node("wait") == "over"


def main():
    run_all(globals())
