"""Prefect's and Dagster's tasks on ranks: the real packages, real runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

import workflow_runs
from launches import LONG, checks
from runs import Shanty, wait_for
from shanty.client.runs import LogLine, Run
from shanty.integrations import workflows as ranks
from shanty.runtime.spec import State
from shanty.tasks.task import Task

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(600),
    # The controllers of runs go on without whoever has started them.
    pytest.mark.filterwarnings("ignore:.*Popen.__del__:pytest.PytestUnraisableExceptionWarning"),
]
MODULES = {"prefect": "prefect_flows", "dagster": "dagster_jobs"}
CHECKS = [(engine, name) for engine in MODULES for name in checks(f"{MODULES[engine]}.py")]

TERMINATED = {
    "prefect": """
import sys
from prefect import flow
from prefect_flows import wait

@flow
def whole(folder, how):
    return wait(folder) if how == "call" else wait.submit(folder).result()

whole(*sys.argv[1:3])
""",
    "dagster": """
import sys
import dagster
import dagster_jobs

if __name__ == "__main__":
    job = dagster.reconstructable(dagster_jobs.waiting)
    with dagster.DagsterInstance.get() as instance:
        done = dagster.execute_job(job, instance, run_config=dagster_jobs.config(sys.argv[1]))
    sys.exit(not done.success)
""",
}


class WrongError(Exception):
    """Raised in a rank."""


def twice(number: int) -> int:
    return 2 * number


def say(number: int) -> int:
    """What is called in the ranks; they do not import this module for it."""
    import sys
    import time

    assert __name__ not in sys.modules
    print("has", twice(number), flush=True)
    print("and waits", end="", flush=True)
    if number < 0:
        time.sleep(120)
    if number == 0:
        raise WrongError
    return twice(number)


class Lines:
    """Keeps the lines of a run; raises when it is asked to."""

    def __init__(self, until: str = "never") -> None:
        self.until = until
        self.seen: list[str] = []
        self.runs: set[Run] = set()

    def __call__(self, run: Run, lines: Sequence[LogLine]) -> None:
        self.runs.add(run)
        self.seen += [ranks.shown(line) for line in lines]
        if self.until in self.seen:
            self.until = "never"
            raise KeyError("enough")


@pytest.fixture
def say_task(shanty: Shanty, monkeypatch: pytest.MonkeyPatch) -> Task[[int], int]:
    monkeypatch.setenv("SHANTY_HOME", str(shanty.home))
    return Task(say, {"ranks": 2, "workdir": str(shanty.folder)})


def test_lines_go_to_whoever_wants_them(say_task: Task[[int], int]) -> None:
    lines = Lines()
    assert ranks.call(say_task, [4], {}, lines) == 8
    assert sorted(lines.seen) == ["[0] and waits", "[0] has 8", "[1] and waits", "[1] has 8"]
    (run,) = lines.runs
    assert ranks.introduction(run).startswith(f"run {run.id}, 2 ranks: shanty logs -f {run.id}")


def test_an_exception_is_itself(say_task: Task[[int], int]) -> None:
    with pytest.raises(WrongError):
        ranks.call(say_task, [0], {}, Lines())


def test_who_wants_no_more_lines_stops_the_run(say_task: Task[[int], int]) -> None:
    lines = Lines(until="[1] has -2")
    with pytest.raises(KeyError, match="enough"):
        ranks.call(say_task, [-1], {}, lines)
    (run,) = lines.runs
    assert run.state is State.STOPPED


@pytest.fixture(scope="module")
def launches() -> Iterator[object]:
    """What the checks of an engine say: they are made once."""
    yield cache(lambda engine: workflow_runs.checks_of(engine, MODULES[engine]))


@pytest.mark.slow
@LONG
@pytest.mark.parametrize(("package", "name"), CHECKS)
def test_check(launches: object, package: str, name: str) -> None:
    said = launches(package)  # type: ignore[operator]
    assert f"ok {name}\n" in said, said


@pytest.mark.slow
@LONG
@pytest.mark.parametrize(
    ("package", "how"), [("prefect", "call"), ("prefect", "submit"), ("dagster", "")]
)
@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run(
    shanty: Shanty, package: str, how: str, word: signal.Signals
) -> None:
    script = shanty.script(TERMINATED[package])
    words = [script, shanty.folder, how]
    with workflow_runs.started(package, shanty.home, shanty.folder, *words) as program:
        ended = program.process.poll
        wait_for(lambda: shanty.status().get("state") == "running" or ended() is not None, 120)
        program.process.send_signal(word)
        out = program.wait(60)
    assert shanty.status()["state"] == "stopped", out
    assert program.process.returncode != 0


@pytest.mark.slow
@LONG
@pytest.mark.parametrize(
    ("package", "said"), [("prefect", "the best: 0.3"), ("dagster", "the model: 0.3")]
)
def test_the_example_of_the_page(shanty: Shanty, package: str, said: str) -> None:
    script = shanty.script(workflow_runs.example(package))
    with workflow_runs.started(package, shanty.home, shanty.folder, script) as program:
        out = program.wait(180)
    assert program.process.returncode == 0, out
    assert said in out.splitlines()
