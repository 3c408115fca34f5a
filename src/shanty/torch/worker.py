"""The communication thread: it calls MPI, in the order of submission, so that others compute.

Collectives are blocking calls, because a blocking call makes progress by itself while the main
thread computes (a non-blocking one would advance only inside further calls); `meeting` sees to it
that they do not block for long. Point-to-point operations are non-blocking and polled, for two
ranks that send to each other before they receive must not lock up. With nothing to do the thread
sleeps in a queue. A call that its caller waits for at once runs in the caller, where nothing else
is under way: handing it over would take several times as long as a small one itself.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shanty.torch import sites
from shanty.torch.work import CommunicationError, Complete, MPIWork

if TYPE_CHECKING:
    from shanty.torch.rollcall import Inquiry, RollCall, State

Body = Callable[[], "Pending | None"]

EXIT_PATIENCE = 10.0
"""Seconds that the interpreter's exit grants to operations still under way."""

_LAST_MESSAGES = 5.0  # seconds that messages under way get when their group is destroyed
_EAGER = 0.002  # seconds after the last event during which polling only yields the core
_PAUSE, _LONGEST_PAUSE = 0.0001, 0.001  # seconds between polls after that
_HERE = 0.0002  # seconds that a caller tries to meet the other ranks by itself
_ROLL_CALLS = 0.25  # seconds between looks for roll calls while there is nothing to do
_PARTING = 5.0  # seconds that a rank which gave up leaves the others to notice


@dataclass(frozen=True, slots=True)
class Pending:
    """A point-to-point operation under way: MPI's request, and what to do once it is complete.

    members: the ranks of the world that it waits for.
    """

    request: Any  # mpi4py.MPI.Request; this module must not import MPI, which would start it
    memory: torch.Tensor  # must live until then
    complete: Complete
    members: tuple[int, ...] = ()


class Worker:
    """Runs operations one after the other on a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[MPIWork | None] = queue.SimpleQueue()
        self._pending: list[tuple[MPIWork, Pending]] = []
        self._abandoned: list[Pending] = []  # for MPI may write to their memory for ever
        self._thread: threading.Thread | None = None
        self._ident: int | None = None  # the thread's own, while it runs
        self._guard = threading.Lock()
        self._here = threading.Lock()  # held by a caller that runs its operation itself
        self._users = 0
        self._exit_hook = False
        self._current: MPIWork | None = None
        self._numbers = itertools.count(1)
        self._given = self._ended = 0  # operations put into the queue, and of those the ended
        self._inquiry: tuple[MPIWork, Inquiry] | None = None
        self.several_threads = False  # whether MPI allows calls from several at a time
        self.checked = False  # SHANTY_CHECK=1: answer roll calls while idle, make inquiries
        self.rollcall: RollCall | None = None
        self.overdue: MPIWork | None = None
        self.waiter: MPIWork | None = None  # what another thread waits for
        self.gave_up: CommunicationError | None = None  # the first error after which a group broke

    # ---- for groups ------------------------------------------------------------------------

    def submit(self, work: MPIWork) -> MPIWork:
        """Run `work` after everything submitted before it.

        From the communication thread itself, that is in a callback of a future, it runs at once.
        So the order of operations is the same on every rank, whether a callback was attached
        before its operation ended (and runs there) or after (and ran in the caller).
        """
        if self.is_current():
            self._start(work)
            return work
        self._put(work)
        return work

    def run(self, work: MPIWork) -> MPIWork:
        """As `submit`, for a collective that its caller waits for at once: run here, if nothing
        else is under way and the other ranks come without delay.
        """
        meeting = work.meeting
        alone = self._given == self._ended and self.several_threads and not self.is_current()
        if meeting is None or not alone or not self._here.acquire(blocking=False):
            return self.submit(work)
        try:
            if not meeting.try_to_meet(_HERE):
                self._put(work)  # the thread goes on where we stopped
                return work
            self._execute(work)
        except Exception as error:  # noqa: BLE001 (whatever it is, wait() raises it)
            work.finish(_failure(work, error))
        else:
            work.finish()
        finally:
            self._here.release()
        return work

    def is_current(self) -> bool:
        """Whether the caller runs on the communication thread."""
        return threading.get_ident() == self._ident

    def is_stuck(self) -> bool:
        """Whether the thread is still in, or before, an operation that a wait gave up on."""
        return self.overdue is not None and not self.overdue.is_completed()

    def enter(self) -> None:
        """A group begins to use the thread."""
        with self._guard:
            self._users += 1

    def leave(self) -> None:
        """A group is done with it; the last one stops the thread (and starts it no more)."""
        with self._guard:
            self._users -= 1
            last = self._users == 0
        if last and not self.is_current():
            self.stop(EXIT_PATIENCE)
            self._say_farewell()

    def stop(self, patience: float) -> bool:
        """End the thread after what was submitted; whether it ended within `patience` seconds."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._thread = None
            return True
        self._queue.put(None)
        thread.join(0.1 if self.is_stuck() else patience)
        if thread.is_alive():
            return False
        self._thread = None
        return True

    def complete(self, work: MPIWork, seconds: float) -> None:
        """Wait on the communication thread itself, where nobody else would make progress."""
        if all(work is not other for other, _ in self._pending):
            raise RuntimeError(
                f"{work.what}: a callback on the communication thread waits for an operation "
                "that is queued behind it and could never begin. Wait for it in the main thread, "
                "or start it in the callback."
            )
        end = time.monotonic() + seconds
        while not work.is_completed() and time.monotonic() < end:
            self._poll()
            os.sched_yield()

    def state(self) -> State:
        """What this rank answers to a roll call."""
        from shanty.torch.rollcall import Activity, State

        if self.gave_up is not None:
            first = str(self.gave_up).partition("\n")[0]
            return State(Activity.FAILED, f"gave up: {first}", self._ended)
        waiter = self.waiter
        if waiter is not None and not waiter.is_completed():
            return State(Activity.WAITS, f"waits in {waiter}", self._ended, busy=True)
        where = sites.spell(sites.main_thread())
        place = f"is at {where}" if where else "is outside of Python"
        current = self._current
        behind = f", while its {current} waits" if current is not None else ""
        return State(Activity.RUNS, f"{place}{behind}", self._ended, current is not None)

    # ---- the thread ------------------------------------------------------------------------

    def _put(self, work: MPIWork) -> None:
        if self._thread is None:
            self._launch()
        self._given = next(self._numbers)
        self._queue.put(work)

    def _launch(self) -> None:
        with self._guard:
            if self._thread is not None:
                return
            if not self._exit_hook:
                atexit.register(self._at_exit)
                self._exit_hook = True
            # A daemon, or the interpreter would wait for it before the exit hook can stop it.
            self._thread = threading.Thread(target=self._run, name="shanty-mpi", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while self._step():
            pass
        self.drain()
        abandoned, self._pending = self._pending, []
        self._abandoned += [operation for _, operation in abandoned]
        for work, _ in abandoned:
            error = CommunicationError(f"{work.what}: given up when its group was destroyed.")
            self._end(work, error)
        self._ident = None

    def drain(self) -> bool:
        """On the communication thread: see messages under way through; whether none is left."""
        end = time.monotonic() + _LAST_MESSAGES
        while self._pending and time.monotonic() < end:
            if not self._poll():
                time.sleep(_PAUSE)
        return not self._pending

    def _step(self) -> bool:
        # A function of its own: between two steps no local name may keep a tensor alive.
        work = self._next()
        if work is not None:
            self._start(work)
        return work is not None

    def _next(self) -> MPIWork | None:
        active = time.monotonic() if self._pending else 0.0
        while self._pending:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                pass
            now = time.monotonic()
            if self._poll():
                active = now
            elif now - active < _EAGER:
                os.sched_yield()
            else:
                time.sleep(max(_PAUSE, min(_LONGEST_PAUSE, (now - active) * 0.05)))
                self._look_around()
        while self.checked and self.rollcall is not None:
            try:
                return self._queue.get(timeout=_ROLL_CALLS)
            except queue.Empty:
                self.rollcall.answer()
        return self._queue.get()

    def _start(self, work: MPIWork) -> None:
        self._current = work
        try:
            if work.meeting is not None:
                work.meeting.wait(work.limit)
            operation = self._execute(work)
        except Exception as error:  # noqa: BLE001 (whatever it is, wait() raises it)
            failure = _failure(work, error)
            if work.meeting is not None and work.meeting.broke:
                self.gave_up = failure
            self._end(work, failure)
            return
        finally:
            self._current = None
        if operation is None:
            self._end(work)
        else:
            work.body = None
            self._pending.append((work, operation))
            self._poll()  # a message that is there, or small, is complete at once

    def _execute(self, work: MPIWork) -> Pending | None:
        assert work.body is not None
        if work.meeting is not None:
            work.meeting.compare(work.limit)
        # Results are written into leaves that need gradients and into inference tensors too;
        # callbacks (in finish) must not run in this mode.
        with torch.inference_mode():
            return work.body()

    def _end(
        self, work: MPIWork, error: CommunicationError | None = None, source: int = -1
    ) -> None:
        self._ended += 1
        work.finish(error, source)

    def _poll(self) -> bool:
        from mpi4py import MPI

        ended: list[tuple[MPIWork, CommunicationError | None, int]] = []
        for item in list(self._pending):
            work, operation = item
            status = MPI.Status()
            error: CommunicationError | None = None
            source = -1
            try:
                if not operation.request.Test(status):
                    continue
                with torch.inference_mode():
                    source = operation.complete(status)
            except Exception as cause:  # noqa: BLE001 (likewise)
                error = _failure(work, cause)
            self._pending.remove(item)
            ended.append((work, error, source))
        for work, error, source in ended:  # last: their callbacks may start operations
            self._end(work, error, source)
        return bool(ended)

    def _look_around(self) -> None:
        """While messages are under way: answer roll calls, and give up on what cannot come."""
        if self.rollcall is None:
            return
        self.rollcall.answer()
        waiter = self.waiter
        if not self.checked or waiter is None:
            self._inquiry = None
            return
        item = next((item for item in self._pending if item[0] is waiter), None)
        if item is None:
            return
        if self._inquiry is None or self._inquiry[0] is not waiter:
            from shanty.torch.rollcall import Inquiry

            self._inquiry = waiter, Inquiry(self.rollcall, item[1].members)
        answers = self._inquiry[1].verdict()
        if answers is None or self._poll():
            return
        lines = [f"  rank {rank} {state.text}" for rank, state in sorted(answers.items())]
        text = f"{waiter.what} can never complete:\n" + "\n".join(lines)
        error = self.gave_up = CommunicationError(text)
        self._pending.remove(item)
        self._abandoned.append(item[1])
        self._end(waiter, error)

    # ---- the end ---------------------------------------------------------------------------

    def _at_exit(self) -> None:
        """Stop before the interpreter finalises MPI; never hang, never end as if all were well."""
        ended = self.stop(EXIT_PATIENCE)
        if ended and self.gave_up is None:
            self._say_farewell()
            return
        from mpi4py import MPI

        current = self._current
        what = f"{current.what if current else 'communication'} is still under way"
        if self.gave_up is not None and self.rollcall is not None:
            self.rollcall.part(_PARTING)
            what = "it gave up on communication"
        print(
            f"shanty.torch: rank {MPI.COMM_WORLD.rank} exits, but {what}: another rank "
            "does not take part. Aborting the run.",
            file=sys.stderr,
            flush=True,
        )
        MPI.COMM_WORLD.Abort(1)

    def _say_farewell(self) -> None:
        if self.checked and self.rollcall is not None:
            self.rollcall.leave()
            self.rollcall = None


def _failure(work: MPIWork, cause: Exception) -> CommunicationError:
    if isinstance(cause, CommunicationError):
        return cause
    error = CommunicationError(f"{work.what} failed: {cause}")
    error.__cause__ = cause
    return error


WORKER = Worker()
"""The one communication thread of this process."""
