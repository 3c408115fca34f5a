"""The node agents of other hosts, as the controller hears them."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plans import node, plan_of
from runs import wait_for
from shanty.runtime.controller import worker_links
from shanty.runtime.controller.worker_link import WorkerState
from shanty.runtime.controller.worker_links import WorkerLinks
from shanty.runtime.errors import StorageError
from shanty.runtime.messages import (
    Beat,
    Flushed,
    Hello,
    Launch,
    Message,
    Prepare,
    RankReport,
    Ready,
    Report,
    Sample,
    encode,
)
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import CUT_OFF, Failure

AHEAD = 5000.0  # seconds that the clock of the other host is ahead


class Events:
    """What the controller is told."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def heard(self, message: object, host: str) -> None:
        assert host == "lab1"
        self.messages.append(message)

    def event(self, kind: str, **more: object) -> None:
        del kind, more

    def turn(self) -> None:
        """Nothing else waits."""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerLinks]]:
    """Start the workers of a run whose other host says these lines, and then nothing more."""
    monkeypatch.setattr(worker_links, "_LEAVING", 0.1)  # this host never leaves by itself
    started: list[WorkerLinks] = []

    def begin(events: Events, *lines: bytes, then: str = "sys.stdin.read()") -> WorkerLinks:
        code = f"import os, sys; sys.stdout.buffer.writelines({lines!r}); sys.stdout.flush()"
        code += f"; {then}"
        run = RunDir(tmp_path / "run")
        if not run.path.exists():
            run.create()
        plan = plan_of(2)
        way = {"kind": "exec", "argv": [sys.executable, "-c", code]}
        nodes = (plan.lead, node(1, connection=way))
        attempt = plan.attempt._replace(nodes=nodes)
        scratch = str(tmp_path)
        workers = WorkerLinks(run, plan._replace(attempt=attempt, scratch=scratch), events)
        started.append(workers)
        return workers

    yield begin
    for workers in started:
        workers.close()


def serve(workers: WorkerLinks, until: Callable[[], bool]) -> None:
    """Take what comes, as the controller does."""

    def is_done() -> bool:
        for fd in workers.sources:
            workers.serve(fd)
        workers.judge(time.monotonic(), launcher_is_done=False)
        return until()

    wait_for(is_done, 10)


def lost(workers: WorkerLinks) -> Failure:
    serve(workers, lambda: workers.any_lost)
    failure = workers.judge(time.monotonic(), launcher_is_done=False)
    assert failure is not None and failure.host == "lab1"
    return failure


def told(*messages: Message) -> list[bytes]:
    return [encode(message) for message in messages]


def test_why_a_host_cannot_be_entered(start: Callable[..., WorkerLinks]) -> None:
    """Its node agent may have ended with an error of three lines."""
    error = StorageError("cannot write /h/x", "File too large", "raise the limit")
    text = f"Traceback\n  File x\nshanty.runtime.errors.StorageError: {error}\n"
    failure = lost(start(Events(), then=f"sys.exit({text!r})"))
    assert failure.what.startswith("host lab1 cannot be entered from")
    assert (failure.why, failure.fix) == ("cannot write /h/x: File too large", "raise the limit")


def test_a_connection_whose_process_is_killed(start: Callable[..., WorkerLinks]) -> None:
    hello = told(Hello((4001,)))
    failure = lost(start(Events(), *hello, then="os.kill(os.getpid(), 9)"))
    assert failure.what == "the connection to host lab1 was lost"
    assert "was ended by SIGKILL" in failure.why


@pytest.mark.parametrize("answers", [True, False])
def test_a_call_of_ssh_is_blamed_only_while_its_host_answers(
    start: Callable[..., WorkerLinks], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A call ends, too, as its host is lost: then that is the cause, once it is known."""
    answer = f"[os.write(1, {encode(Flushed(''))!r}) for x in sys.stdin.buffer if b'Flush' in x]"
    workers = start(Events(), *told(Hello((4001,))), then=answer if answers else "sys.stdin.read()")
    (worker,) = workers.sources.values()
    serve(workers, lambda: worker.state is WorkerState.HERE)
    monkeypatch.setattr(workers._rsh, "dropped", lambda: worker)
    assert workers.judge(time.monotonic(), launcher_is_done=False) is None
    if answers:
        serve(workers, lambda: bool(workers.judge(time.monotonic(), launcher_is_done=False)))
        failure = workers.judge(time.monotonic(), launcher_is_done=False)
        assert failure is not None
        assert failure.what.startswith("the launcher's connection to host lab1 was ended on")
    else:
        worker.process.kill()
        assert lost(workers).what == "the connection to host lab1 was lost"


@pytest.mark.parametrize(
    ("asked", "cut_off"), [(None, False), (3.0, False), (0.5, True), (-1.0, True), (-60.0, False)]
)
def test_a_lead_host_that_has_lost_all_contact_is_cut_off(
    start: Callable[..., WorkerLinks],
    monkeypatch: pytest.MonkeyPatch,
    asked: float | None,
    cut_off: bool,
) -> None:
    """asked: when the command that stands by asked last, after the last sign of the other host.

    However long ago that was: this host may have been frozen.
    """
    monkeypatch.setattr(worker_links, "_OUT_OF_TOUCH", 0.2)
    workers = start(Events(), *told(Hello((4001,))))
    (worker,) = workers.sources.values()
    serve(workers, lambda: worker.state is WorkerState.HERE)
    workers.tolerate()
    workers.has_launched = True
    worker.last_sent -= 500
    if asked is not None:
        workers._run.standby.touch()
        os.utime(workers._run.standby, (worker.last_sent + asked,) * 2)
    worker.process.kill()
    serve(workers, lambda: workers.any_lost)
    now = time.monotonic()
    assert (workers.judge(now, launcher_is_done=False) is None) or cut_off
    assert (workers.take_lost(now) == {}) is cut_off  # held back until it is clear
    assert workers.wait_for_contact() is cut_off
    failure = workers.judge(time.monotonic(), launcher_is_done=False)
    assert (failure is not None and failure.cause == CUT_OFF) is cut_off


def test_times_come_by_our_clock_and_steps_as_they_are(start: Callable[..., WorkerLinks]) -> None:
    """The first NaN of a logged number is reported with its step, which is no time."""
    events, now = Events(), time.monotonic() + AHEAD
    ended = Report({"event": "exited", "rank": 1, "code": 3, "at": now})
    nan = Report({"event": "not-finite", "rank": 1, "name": "loss", "at": "step 12"})
    sample = Sample({"cpu": 0.5}, now)
    lines = told(Beat(now), RankReport(ended, now), RankReport(nan, now), sample)
    workers = start(events, b"Welcome!\n", *lines)
    serve(workers, lambda: len(events.messages) == 4)
    _, first, second, third = events.messages
    for at in (first.report.number("at", 0.0), third.sent):
        assert abs(at - (now - AHEAD)) < 10
    assert second.report == nan
    assert not workers.any_lost


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'["Beat", "soon"]\n', "'soon' is not a number"),
        (b'["Greeting", 1]\n', "'Greeting' is not a kind of message"),
    ],
)
def test_a_damaged_message_ends_the_run(
    start: Callable[..., WorkerLinks], line: bytes, why: str
) -> None:
    failure = lost(start(Events(), line))
    assert failure.what == "the node agent on host lab1 sent an invalid message"
    assert failure.why.startswith(why)


def test_the_steps_of_a_launch(start: Callable[..., WorkerLinks]) -> None:
    """Orders come once, and `Launch` only when the lead host is ready as well."""
    events, poll = Events(), select.poll()
    workers = start(events, *told(Hello((4001, 4002, 4003))))
    assert workers.advance(poll, ending=False) is None
    orders: list[Any] = []

    def advance() -> bool:
        orders.append(workers.advance(poll, ending=False))
        return orders[-1] is not None

    serve(workers, advance)
    assert isinstance(orders[-1], Prepare)
    assert "MASTER_PORT" in orders[-1].variables
    assert workers.advance(poll, ending=False) is None
    assert not workers.has_launched

    again = Events()
    workers = start(again, *told(Hello((4001, 4002, 4003)), Ready({})))
    serve(workers, lambda: again.messages == [Ready({})])
    assert workers.advance(poll, ending=False) is None
    workers.lead_is_ready = True
    assert workers.advance(poll, ending=True) is None
    assert isinstance(workers.advance(poll, ending=False), Launch)
    assert workers.has_launched
    assert workers.advance(poll, ending=False) is None
