"""The communication thread: it calls MPI, in the order of submission, so that others compute.

Collectives are blocking calls, because a blocking call makes progress by itself while the main
thread computes (a non-blocking one would advance only inside further calls); handshakes ensure that
they do not block for long. Messages are not blocking: they begin in their caller and are polled,
since two ranks that send to each other before they receive must not lock up. An idle thread sleeps
in a queue. A collective that its caller waits for at once runs in the caller if nothing else is
under way: handing over a small one would take several times as long as the call itself. Importing
this starts no MPI.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from shanty.collectives import call_sites
from shanty.runtime.rundir import FAILING
from shanty.torch.work import CommunicationError, CommunicationTimeoutError, MPIWork, writing

if TYPE_CHECKING:
    from shanty.collectives.watchdog import Inquiry, State, Watchdog
    from shanty.torch.messages import Message

EXIT_PATIENCE = 10.0
"""Seconds that the interpreter's exit grants to operations still under way."""

_EAGER = 0.002  # seconds after the last event during which a look follows on the other
_PAUSE, _LONGEST_PAUSE = 0.0001, 0.001  # seconds between looks after that
_LAST_MESSAGES = 5.0  # seconds that messages under way get when their group is destroyed
_HERE = 0.0002  # seconds that a caller tries to meet the other ranks by itself
_GRACE = 5.0  # seconds past the limit in which the thread says who is missing
_LOOKS = 0.25  # seconds between looks for a watchdog's questions while the thread is idle
_PARTING = 5.0  # seconds that a rank which gave up leaves the others to notice


def pause(idle: float) -> float:
    """Return the seconds between two looks, so long after the last event."""
    return 0.0 if idle < _EAGER else max(_PAUSE, min(_LONGEST_PAUSE, idle * 0.05))


class BackgroundThread:
    """Runs operations one after the other on a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[MPIWork | None] = queue.SimpleQueue()
        self._later: deque[MPIWork | None] = deque()  # taken from the queue, to be run before it
        self.under_way: list[MPIWork] = []  # messages, of all groups
        self.abandoned: list[Message] = []  # MPI may still write to their memory
        self._inquiry: tuple[MPIWork, Inquiry] | None = None
        self._thread: threading.Thread | None = None
        self._ident: int | None = None  # the thread's own, while it runs
        self._stopping = False
        self._guard = threading.Lock()
        self._here = threading.Lock()  # held by a caller that runs its operation itself
        self._users = 0
        self._process = 0  # in which the exit hook was set; a forked child must leave MPI alone
        self._current: MPIWork | None = None
        self._given = self._done = 0  # works for the thread; those it is done with, callbacks too
        self._ended = 0  # operations, wherever they ran: the progress that watchdogs look at
        self.several_threads = False  # whether MPI allows calls from several at a time
        self.checked = False  # SHANTY_CHECK=1: answer watchdogs while idle, make inquiries
        self.watchdogs: dict[tuple[int, ...], Watchdog] = {}  # that this rank answers to
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
        if not self.is_current():
            self._put(work)
        elif self._current is None or work.handshake is None:
            self._start(work)
        else:  # a message has ended while a collective waits for its ranks: after that collective
            self._count(work)
            self._later.append(work)
        return work

    def run(self, work: MPIWork) -> MPIWork:
        """As `submit`, for a collective that its caller waits for at once: run here, if nothing
        else is under way and the other ranks come without delay.
        """
        handshake = work.handshake
        alone = self._given == self._done and self.several_threads and not self.is_current()
        if handshake is None or not alone or not self._here.acquire(blocking=False):
            return self.submit(work)
        try:
            if work.ready is not None:
                work.ready()
            met = handshake.attempt(_HERE)
            if met:
                self._execute(work)
        except BaseException as error:
            self._fail(work, error)
            if not isinstance(error, Exception):  # an interrupt is for the caller alone
                raise
        else:
            if met:
                self._end(work)
            else:
                self._put(work)  # the thread goes on where we stopped
        finally:
            self._here.release()
        return work

    def begin(self, work: MPIWork) -> MPIWork:
        """As `submit`, for a message: begin it here, which does not block and keeps the order. The
        thread does the rest.
        """
        if self.is_current() or not self.several_threads:
            return self.submit(work)
        try:
            if work.ready is not None:
                work.ready()
            work.message = self._execute(work)
            work.body = None
        except Exception as error:  # noqa: BLE001 (whatever it is, wait() raises it)
            self._fail(work, error)
            return work
        outcome = self._outcome(work)
        if outcome is None:
            self._put(work)
        else:
            self._end(work, *outcome)
        return work

    def is_current(self) -> bool:
        """Return true on the communication thread."""
        return threading.get_ident() == self._ident

    def is_stuck(self) -> bool:
        """Return true while the thread is in, or before, an operation that a wait gave up on."""
        return self.overdue is not None and not self.overdue.done

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
        """End the thread after what was submitted; returns whether it ended within `patience` s."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._thread = None
            return True
        self._stopping = True
        self._queue.put(None)  # wakes it
        thread.join(0.1 if self.is_stuck() else patience)
        if thread.is_alive():
            self._stopping = False
            return False
        self._thread = None
        return True

    def wait_for(self, work: MPIWork, asked: float) -> None:
        """Wait until it has ended. asked: seconds, zero or less mean its limit. Raises
        CommunicationTimeoutError when they have passed.
        """
        seconds = asked if asked > 0 else work.limit
        # This thread keeps the limit of a collective itself, and knows who is missing.
        grace = _GRACE if asked <= 0 and work.handshake is not None else 0.0
        if self.is_current():
            self._wait_here(work, seconds)
        else:
            is_main = threading.current_thread() is threading.main_thread()
            in_time = False
            if is_main:
                self.waiter = work
            try:
                in_time = work.join(seconds + grace)
            finally:
                if is_main:
                    self.waiter = None
                if not in_time and work.body is not None:  # interrupted counts as given up, too
                    self.overdue = work
        if not work.done:
            missing = f"\n{work.missing()}" if work.missing is not None else ""
            raise CommunicationTimeoutError(
                f"{work.what} was not complete after {seconds:g} s. Most often another rank "
                "failed, left its loop early, or called something else at this point. "
                f"Look at where every rank is (`shanty stacks RUN`), and end the run.{missing}"
            )

    def state(self) -> State:
        """Return what this rank answers to a watchdog."""
        from shanty.collectives.watchdog import Activity, State

        if self.gave_up is not None:
            first = str(self.gave_up).partition("\n")[0]
            return State(Activity.FAILED, f"gave up: {first}", self._ended)
        waiter = self.waiter
        if waiter is not None and not waiter.done:
            return State(Activity.WAITS, f"waits in {waiter}", self._ended, busy=True)
        where = call_sites.spell(call_sites.main_thread())
        place = f"is at {where}" if where else "is outside of Python"
        current = self._current
        behind = f", while its {current} waits" if current is not None else ""
        return State(Activity.RUNS, f"{place}{behind}", self._ended, current is not None)

    # ---- the thread ------------------------------------------------------------------------

    def _wait_here(self, work: MPIWork, seconds: float) -> None:
        """Wait on this thread itself, where no other thread would make progress."""
        if work not in self.under_way:
            raise RuntimeError(
                f"{work.what}: a callback on the communication thread waits for an operation "
                "that is queued behind it and could never begin. Wait for it in the main thread, "
                "or start it in the callback."
            )
        active = now = time.monotonic()
        end = now + seconds
        while not work.done and now < end:
            if self._poll():
                active = now
            else:
                time.sleep(pause(now - active))
            now = time.monotonic()

    def _put(self, work: MPIWork) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._launch()
        self._count(work)
        self._queue.put(work)

    def _count(self, work: MPIWork) -> None:
        work.queued = True
        with self._guard:
            self._given += 1

    def _launch(self) -> None:
        with self._guard:
            if self._thread is not None and self._thread.is_alive():
                return
            if self._process != os.getpid():
                atexit.register(self._at_exit)
                self._process = os.getpid()
            self._stopping = False
            # A daemon, or the interpreter would wait for it before the exit hook can stop it.
            self._thread = threading.Thread(target=self._run, name="shanty-mpi", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while self._step():
            pass
        self.drain()
        self._ident = None

    def drain(self, group: object = None) -> bool:
        """On the communication thread: wait some seconds for a group's messages, or for all; those
        that do not end fail. Returns whether there were none of these.
        """
        end = time.monotonic() + _LAST_MESSAGES

        def left() -> list[MPIWork]:
            return [work for work in self.under_way if group is None or work.place is group]

        while left() and time.monotonic() < end:
            if not self._poll():
                time.sleep(_PAUSE)
        given_up = left()
        for work in given_up:
            text = f"{work.what}: given up when its group was destroyed."
            self._abandon(work, CommunicationError(text))
        return not given_up

    def _step(self) -> bool:
        # A function of its own: between two steps no local name may keep a tensor alive.
        work = self._next()
        if work is not None:
            self._start(work)
        return work is not None or not self._stopping

    def _next(self) -> MPIWork | None:
        active = time.monotonic()
        while not self._later:
            wait: float | None = None
            if self.under_way:
                now = time.monotonic()
                if self._poll():
                    active = now
                wait = pause(now - active)
                if not wait:
                    os.sched_yield()
            elif self.checked:
                wait = _LOOKS
            try:
                return self._queue.get(timeout=wait)
            except queue.Empty:
                if wait:  # nothing happens
                    for watchdog in self.watchdogs.values():
                        watchdog.answer()
                    if self.checked:
                        self._inquire()
        return self._later.popleft()

    def _meanwhile(self) -> None:
        """While a collective waits for its ranks: see to messages, which they may depend on."""
        while not self._queue.empty():
            work = self._queue.get()
            if work is not None and work.message is not None:
                self.under_way.append(work)
            else:
                self._later.append(work)
        if self.under_way:
            self._poll()

    def _start(self, work: MPIWork) -> None:
        failure: Exception | None = None
        if work.message is None:
            before, self._current = self._current, work
            try:
                if work.ready is not None:
                    work.ready()
                if work.handshake is not None:
                    work.handshake.wait(self._meanwhile)
                work.message = self._execute(work)
            except Exception as error:  # noqa: BLE001 (whatever it is, wait() raises it)
                failure = error
            finally:
                self._current = before
        if failure is not None:
            self._fail(work, failure)
        elif work.message is None:
            self._end(work)
        else:
            work.body = None
            self.under_way.append(work)
            self._poll()  # a message that is there, or small, is complete at once

    def _execute(self, work: MPIWork) -> Message | None:
        assert work.body is not None
        if work.handshake is not None:
            work.handshake.compare()
        with writing():
            return work.body()

    def _end(
        self, work: MPIWork, error: CommunicationError | None = None, source: int = -1
    ) -> None:
        self._ended += 1
        work.finish(error, source)
        if work.queued:  # from here on another thread may run what it waits for by itself
            self._done += 1

    def _fail(self, work: MPIWork, cause: BaseException) -> None:
        failure = work.failure(cause)
        if work.handshake is not None:
            if not isinstance(cause, Exception):
                work.handshake.channel.give_up(failure)
            if work.handshake.channel.broken is not None and self.gave_up is None:
                self.gave_up = failure
        self._end(work, failure)

    # ---- messages under way ----------------------------------------------------------------

    def _poll(self) -> bool:
        """Look at each; returns whether one has ended."""
        looked = [(work, self._outcome(work)) for work in self.under_way]
        ended = [(work, outcome) for work, outcome in looked if outcome is not None]
        for work, _ in ended:
            self.under_way.remove(work)
        for work, outcome in ended:  # last: their callbacks may start operations
            self._end(work, *outcome)
        return bool(ended)

    def _outcome(self, work: MPIWork) -> tuple[CommunicationError | None, int] | None:
        """Return the error and the source of a message that ended; None while it is under way."""
        message = work.message
        assert message is not None
        try:
            if not message.has_ended():
                return None
        except Exception as cause:  # noqa: BLE001 (whatever it is, wait() raises it)
            self.abandoned.append(message)  # others of its pieces may still be under way
            return work.failure(cause), -1
        try:
            with writing():
                return None, message.complete(message.statuses)
        except Exception as cause:  # noqa: BLE001 (likewise)
            return work.failure(cause), -1

    def _abandon(self, work: MPIWork, error: CommunicationError) -> None:
        """End one with an error, and keep its memory, since MPI cannot take it back."""
        self.under_way.remove(work)
        assert work.message is not None
        self.abandoned.append(work.message)
        self._end(work, error)

    def _inquire(self) -> None:
        """Give up the message that the main thread waits for, where it is certain that it cannot
        come. To be asked again and again: it takes its time.
        """
        waiter = self.waiter
        if waiter is None or waiter not in self.under_way:
            self._inquiry = None
            return
        if self._inquiry is None or self._inquiry[0] is not waiter:
            assert waiter.inquiry is not None
            self._inquiry = waiter, waiter.inquiry()
        answers = self._inquiry[1].verdict()
        if answers is None or self._poll():
            return
        lines = [f"  rank {rank} {state.text}" for rank, state in sorted(answers.items())]
        error = CommunicationError(f"{waiter.what} can never complete:\n" + "\n".join(lines))
        self._abandon(waiter, error)
        self.gave_up = self.gave_up or error

    # ---- the end ---------------------------------------------------------------------------

    def _at_exit(self) -> None:
        """Stop before the interpreter finalises MPI; never hang, never end as if all were well."""
        if self._process != os.getpid() or FAILING in os.environ:
            return
        ended = self.stop(EXIT_PATIENCE)
        if ended and self.gave_up is None:
            self._say_farewell()
            return
        from mpi4py import MPI

        current = self._current
        what = f"{current.what if current else 'communication'} is still under way"
        if self.gave_up is not None:
            for watchdog in self.watchdogs.values():
                watchdog.part(_PARTING)
            what = "it gave up on communication"
        print(
            f"shanty.torch: rank {MPI.COMM_WORLD.rank} exits, but {what}: another rank "
            "does not take part. Aborting the run.",
            file=sys.stderr,
            flush=True,
        )
        MPI.COMM_WORLD.Abort(1)

    def _say_farewell(self) -> None:
        if self.checked:
            for watchdog in self.watchdogs.values():
                watchdog.leave()
            self.watchdogs.clear()


THREAD = BackgroundThread()
"""The one communication thread of this process."""
