"""What a task calls where runs are started: one call, many calls, and how their lines are shown."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from shanty.client.calls import printed, submit
from shanty.client.context import Context
from shanty.client.future import Future
from shanty.client.jobs import task_job
from shanty.client.options import refuse_unknown
from shanty.client.start import plan_run
from shanty.runtime import platform
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import JobSpec
from shanty.tasks.task import Task

__all__ = ["map_calls", "printed", "refuse_unknown", "submit"]

_OF_PLACES = (
    *("ranks", "ranks_per_host", "oversubscribe", "on", "hostfile", "machines", "image", "mpi"),
    "workdir",
)
_QUEUED = 64  # runs that wait in a queue of somebody else's at a time


def map_calls(
    task: Task[..., Any], values: Iterable[Sequence[Any]], at_once: int | None
) -> list[Any]:
    """Call it with each of the argument lists; returns the values in their order.

    The first exception stops what is on, and is raised.
    """
    if at_once is not None and at_once < 1:
        raise UsageError(f"at_once must be at least 1, not {at_once}")
    todo = [*enumerate(map(tuple, values))]
    if not todo:
        return []
    places = _places(task)[: at_once or _QUEUED][: len(todo)]
    found: list[Any] = [None] * len(todo)
    waiting: queue.SimpleQueue[tuple[int, tuple[Any, ...]]] = queue.SimpleQueue()
    for each in todo:
        waiting.put(each)
    failed: list[BaseException] = []
    on: dict[int, Future[Any]] = {}
    ended = threading.Event()

    def work(place: str | None) -> None:
        with contextlib.suppress(queue.Empty):
            while not ended.is_set():
                number, args = waiting.get_nowait()
                try:
                    on[number] = submit(task, args, {}, on=place)
                    if ended.is_set():
                        on[number].cancel()
                    found[number] = on[number].result()
                except BaseException as error:  # noqa: BLE001  whatever the function raises
                    failed.append(error)
                    ended.set()
                finally:
                    on.pop(number, None)

    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in places]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not ended.is_set():
            for thread in threads:
                thread.join(0.05)
    finally:
        ended.set()
        for future in [*on.values()]:
            with contextlib.suppress(Exception):  # it is ending anyhow
                future.cancel()
        for thread in threads:
            thread.join(30)
    if failed:
        raise failed[0]
    return found


def _places(task: Task[..., Any]) -> list[str | None]:
    """Return where calls can be at the same time: hosts as `--on` takes them; None: as it says."""
    here = Context(dict(os.environ))
    job = task_job({key: each for key, each in task.options.items() if key in _OF_PLACES}, None)
    if here.targets.declared(job).late or job.hostfile:
        return [None] * (1 if job.hostfile else _QUEUED)
    if not job.on:
        cores = platform.usable_cores()
        return [None] * max(1, cores // (job.ranks or cores))
    from shanty.launch import inventory  # which a single call does without

    hosts = inventory.resolve(job.on, here.home)
    if job.ranks is None:
        return [None]
    slots = [job.ranks_per_host or host.slots for host in hosts]
    if job.ranks == 1:
        slots = [1 if each is None else each for each in slots]
    if None in slots:
        slots = _slots_of(here, job)
    groups: list[str | None] = []
    group: list[str] = []
    room = 0
    for host, count in zip(hosts, slots, strict=True):
        group.append(inventory.written(host))
        room += count or 1
        if room >= job.ranks:
            groups.append(",".join(group))
            group, room = [], 0
    return groups or [None]


def _slots_of(here: Context, job: JobSpec) -> list[int | None]:
    """Ask the hosts how many slots they have."""
    plan: Any = plan_run(here, replace(job, ranks=None), here.targets.looking())
    try:
        return [node.slots for node in plan.attempt.nodes]
    finally:
        plan.drop()
