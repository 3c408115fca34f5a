"""The communication thread: one a process, it alone calls MPI, in the order of submission.

Collectives are blocking calls, because a blocking call makes progress by itself while the main
thread computes (a non-blocking one would advance only inside further calls). Point-to-point
operations are non-blocking and polled, for two ranks that send to each other before they receive
must not lock up. With nothing to do the thread sleeps in a queue.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from shanty.torch.work import CommunicationError, Complete, MPIWork

Body = Callable[[], "Pending | None"]

EXIT_PATIENCE = 10.0
"""Seconds that the interpreter's exit grants to operations still under way."""

_LAST_MESSAGES = 5.0  # seconds that messages under way get when their group is destroyed
_EAGER = 0.002  # seconds after the last event during which polling only yields the core
_PAUSE = 0.0001  # seconds between polls after that


@dataclass(frozen=True, slots=True)
class Pending:
    """A point-to-point operation under way: MPI's request, and what to do once it is complete."""

    request: Any  # mpi4py.MPI.Request; this module must not import MPI, which would start it
    memory: torch.Tensor  # must live until then
    complete: Complete


class Worker:
    """Runs operations one after the other on a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[MPIWork | None] = queue.SimpleQueue()
        self._pending: list[tuple[MPIWork, Pending]] = []
        self._abandoned: list[Pending] = []  # for MPI may write to their memory for ever
        self._thread: threading.Thread | None = None
        self._ident: int | None = None  # the thread's own, while it runs
        self._guard = threading.Lock()
        self._users = 0
        self._exit_hook = False
        self._current: MPIWork | None = None
        self.overdue: MPIWork | None = None

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
        if self._thread is None:
            self._launch()
        self._queue.put(work)
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
            time.sleep(0)

    # ---- the thread ------------------------------------------------------------------------

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
            work.finish(CommunicationError(f"{work.what}: given up when its group was destroyed."))
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
                time.sleep(0)
            else:
                time.sleep(_PAUSE)
        return self._queue.get()

    def _start(self, work: MPIWork) -> None:
        assert work.body is not None
        self._current = work
        try:
            # Results are written into leaves that need gradients and into inference tensors too;
            # callbacks (in finish) must not run in this mode.
            with torch.inference_mode():
                operation = work.body()
        except Exception as error:  # noqa: BLE001 (whatever it is, wait() raises it)
            work.finish(_failure(work, error))
            return
        finally:
            self._current = None
        if operation is None:
            work.finish()
        else:
            work.body = None
            self._pending.append((work, operation))
            self._poll()  # a message that is there, or small, is complete at once

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
            work.finish(error, source)
        return bool(ended)

    def _at_exit(self) -> None:
        """Stop before the interpreter finalises MPI; never hang, never end as if all were well."""
        if self.stop(EXIT_PATIENCE):
            return
        from mpi4py import MPI

        current = self._current
        print(
            f"shanty.torch: rank {MPI.COMM_WORLD.rank} exits, but "
            f"{current.what if current else 'communication'} is still under way: another rank "
            "does not take part. Aborting the run.",
            file=sys.stderr,
            flush=True,
        )
        MPI.COMM_WORLD.Abort(1)


def _failure(work: MPIWork, cause: Exception) -> CommunicationError:
    if isinstance(cause, CommunicationError):
        return cause
    error = CommunicationError(f"{work.what} failed: {cause}")
    error.__cause__ = cause
    return error


WORKER = Worker()
"""The one communication thread of this process."""
