"""Starts runs: the one way of the command line, the SDK and the integrations.

What waits for machines is started by `launch.scheduler.starter`, which is below this layer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING

from shanty.client.context import Context
from shanty.runtime.rundir import RunDir, new_id
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from shanty.launch.targets.base import Planned
    from shanty.launch.targets.registry import Targets

_UNREAD = 60.0  # seconds in which a caller that waits for a value has read it


def plan_run(here: Context, job: JobSpec, targets: Targets | None = None) -> Planned:
    """Plan a job as a new run; nothing is touched. For a dry run, `targets` are those that look."""
    folder = RunDir(here.home / "runs" / new_id(time.time()))
    return (targets or here.targets).plan(job, folder)


def start_run(
    here: Context,
    plan: Planned,
    *,
    stdin: int | None = None,
    shield: AbstractContextManager[None] | None = None,
    began: Callable[[], None] = lambda: None,
) -> None:
    """Start what was planned; rank 0 reads the descriptor `stdin`, or nothing.

    `shield` decides who gets Ctrl-C while the run comes into being. By default Ctrl-C is put off,
    except where hosts have to be prepared first. `began` is called within the shield. The plan
    is dropped where the run cannot be started.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        _make_room(here, plan)
        if shield is None:
            shield = contextlib.nullcontext() if plan.takes_long else _uninterrupted()
        with shield:
            plan.submit(nothing if stdin is None else stdin)
            began()
    except BaseException:
        plan.drop()
        raise
    finally:
        os.close(nothing)


def _make_room(here: Context, plan: Planned) -> None:
    """Look whether this machine can take it, and delete the oldest runs where there are many."""
    if not plan.takes_long:
        from shanty.launch.doctor import this_machine

        this_machine.check_before_run(plan.job, here.home, here.environ, here.progress.finding)
    runs = plan.run.path.parent
    if runs.exists():
        many = sum(1 for _ in runs.iterdir()) >= here.settings.keep_runs
        if many and here.settings.keep_runs:
            here.runs.prune(here.settings.keep_runs - 1, _UNREAD)  # this one makes it full


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C: a run is there as a whole, and can be stopped, or is not."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: pressed.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            before(signal.SIGINT, pressed[0])
