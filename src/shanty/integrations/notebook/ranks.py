"""Ranks that stay alive between cells, and what can be asked of them."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.client.context import Context, note
from shanty.client.runs import Follower, start_job
from shanty.client.stalls import label, report, stalls_of, text_of
from shanty.integrations.notebook.display import Bar, Output
from shanty.integrations.notebook.feed import Feed
from shanty.integrations.notebook.interrupts import Interrupts
from shanty.runtime.counted import counted
from shanty.runtime.errors import LostError, ShantyError, UsageError
from shanty.runtime.frames import STDERR, STDOUT
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec
from shanty.tasks import call, outcome, pickling
from shanty.tasks.cell_channel import (
    PULL,
    PUSH,
    RUN,
    Order,
    Outcome,
    Shown,
    encode,
    error_file,
    value_file,
)
from shanty.tasks.errors import RunError

_QUICK, _SLOW = 0.001, 0.05  # seconds between two looks at the logs
_LIVELY = 5.0  # seconds after the last line until looks are slow
_STATUS = 0.25  # seconds between two looks at the run's status
_REACTION = 5.0  # seconds that ranks may take to come out of a cell that is interrupted
_LINGER = 3.0  # seconds after a rank's failure until it is said that others are still at it
_ARRIVAL = 30.0  # seconds for a value to come after the word of it
_LEAVING = 5.0  # seconds for ranks to end in good order


def plain(error: BaseException, text: str) -> BaseException:
    """Have IPython show `text` for an exception, not the frames that led here."""
    with contextlib.suppress(AttributeError):  # some take no attributes; then all is shown
        error._render_traceback_ = text.splitlines  # type: ignore[attr-defined]
    return error


class Ranks:
    """The ranks of a notebook, from their start to their end.

    `rich`: progress bars are drawn by the notebook, not on a terminal's last line.
    """

    def __init__(self, here: Context, job: JobSpec, *, rich: bool) -> None:
        self._rich = rich
        self._feed = Feed()
        folder = Path(tempfile.mkdtemp(prefix="shanty-"))
        try:
            call.equip(folder, Path(job.workdir))
            job = replace(job, inputs=str(folder))
            self.run = start_job(here, job, quiet=False, stdin=self._feed.source)
        except BaseException:
            self._feed.close()
            raise
        finally:
            os.close(self._feed.source)
            shutil.rmtree(folder, ignore_errors=True)
        self.elsewhere = bool(job.on or job.hostfile)
        self._workspace = Path(job.workdir)
        self._folder = RunDir(self.run.path)
        self._follower = Follower(self._folder, None, launcher=False)
        self._output = Output(rich=rich)
        self._cell = 0
        self._began = 0.0
        self._size: int | None = None  # as the ranks say
        self._streams: dict[int, set[int]] = {}  # on which a rank has ended the cell
        self._outcomes: dict[int, Outcome] = {}
        self._hosts: dict[int, str] = {}
        self._stalls = 0
        self._pid = os.getpid()
        atexit.register(self.stop)

    # --------------------------------------------------------------------------- orders

    def execute(self, source: str) -> Any:
        """Run a cell; return the value of its last expression in rank 0, None without one.

        Raises what the first rank raised; KeyboardInterrupt where it was interrupted; RunError
        where the ranks have ended.
        """
        return self._do(RUN, body=source.encode())

    def push(self, name: str, value: Any) -> None:
        """Give a variable to all ranks; NotPicklableError where it cannot be sent."""
        file = io.BytesIO()
        with call.by_value(self._workspace if self.elsewhere else None):
            pickling.dump(value, file, name)
        self._do(PUSH, name, file.getvalue())

    def pull(self, name: str) -> Any:
        """Return the variable of rank 0; NameError without one."""
        return self._do(PULL, name)

    def _do(self, kind: str, name: str = "", body: bytes = b"") -> Any:
        self._look()
        if self._lacking():
            raise UsageError(
                f"{label(self._lacking())} {'is' if len(self._lacking()) == 1 else 'are'} still at "
                "the cell before",
                fix="wait for it with `%ranks wait`, or start new ranks: %ranks restart",
            )
        self._cell += 1
        self._began = time.monotonic()
        self._streams, self._outcomes = {}, {}
        self._feed.send(encode(Order(kind, self._cell, name, body)))
        return self._result()

    def wait(self) -> Any:
        """Wait for the cell that was left; return its value, or raise what it raised."""
        return self._result() if self._lacking() else None

    def _result(self) -> Any:
        bar = Bar(self._folder, rich=self._rich)
        with Interrupts() as interrupts:
            try:
                self._follow(bar, interrupts)
            except KeyboardInterrupt:
                self._interrupt(bar, interrupts)
                self._raise_first()
                raise
            finally:
                bar.tick(last=True)
                bar.hide()
        self._raise_first()
        return self._value()

    # ------------------------------------------------------------------------ following

    def _lacking(self) -> list[int]:
        """Return the ranks that have not ended the cell; [0] as long as no rank is known."""
        if self._cell == 0:
            return []
        return [rank for rank in range(self._size or 1) if rank not in self._outcomes]

    def _look(self, bar: Bar | None = None) -> bool:
        """Show what is new in the logs; False where nothing is."""
        lines = self._follower.read()
        for stream, word in self._output.show(lines, bar):
            if word.cell != self._cell:
                continue
            self._size = word.size
            self._hosts[word.rank] = word.host
            streams = self._streams.setdefault(word.rank, set())
            streams.add(stream)
            if streams == {STDOUT, STDERR}:
                self._outcomes[word.rank] = word
        return bool(lines)

    def _follow(self, bar: Bar, interrupts: Interrupts, patience: float | None = None) -> None:
        """Show what the ranks write until all have ended the cell.

        TimeoutError after `patience` seconds without output; RunError if the run ends before.
        """
        looked = lively = time.monotonic()
        warned = False
        failed: float | None = None
        while self._lacking():
            interrupts.check()
            new = self._look(bar)
            now = time.monotonic()
            lively = now if new else lively
            if now > looked + _STATUS:
                looked = now
                self._look_at_run(bar, new=new)
            if failed is None and self._first_error() is not None:
                failed = now
            if failed is not None and now > failed + _LINGER and not warned and patience is None:
                warned = True
                bar.hide()
                self._tell_failure()
            if patience is not None and now > lively + patience:
                raise TimeoutError
            bar.tick()
            if not new and self._lacking():
                time.sleep(_QUICK if now < lively + _LIVELY else _SLOW)

    def _look_at_run(self, bar: Bar, *, new: bool) -> None:
        status = self.run.status
        if status.state.final and not new:
            self._feed.close()
            self.run.wait(check=True)
            raise RunError(f"the ranks of run {self.run.id} have ended", self.run)
        if status.stalled is None:
            return
        for stall in stalls_of(self._folder)[self._stalls :]:
            self._stalls += 1
            bar.hide()
            note(report(stall))
        if self._first_error() is not None:  # the others would wait for it indefinitely
            waiting = label(self._lacking())
            self.stop()
            self._raise_first(
                f"{waiting} waited for it in MPI and could not go on, so all ranks were ended; "
                "the next cell starts new ones"
            )

    # ---------------------------------------------------------------------- what came of it

    def _first_error(self) -> Outcome | None:
        """Return the outcome of the rank that failed first, before those that were interrupted."""
        failed = [each for each in self._outcomes.values() if each.error is not None]
        return min(failed, key=lambda each: (each.interrupted, each.at), default=None)

    def _raise_first(self, more: str = "") -> None:
        first = self._first_error()
        if first is None:
            return
        assert first.error is not None
        place = f"rank {first.rank} on {first.host}"
        data = self._arrived(error_file(self._folder, first.cell, first.rank), first.error)
        error = outcome.unpack_error(data, place)
        if more:
            error.add_note(more)
        shown = str(error.__cause__).strip("\n")
        raise plain(error, f"{shown}\nshanty: {more}" if more else shown)

    def _value(self) -> Any:
        first = self._outcomes[0]
        if first.value is None:
            return None
        path = value_file(self._folder, first.cell, 0)
        data = self._arrived(path, first.value)
        try:
            return pickle.loads(data)
        except Exception as error:  # noqa: BLE001  whatever an object does when it is made
            return Shown(f"<a value that cannot be read here: {type(error).__name__}: {error}>")

    def _arrived(self, path: Path, size: int) -> bytes:
        """Return a file of the ranks, which comes from other hosts after the word of it."""
        deadline = time.monotonic() + _ARRIVAL
        before = -1
        while time.monotonic() < deadline:
            try:
                there = path.stat().st_size
            except OSError:
                there = -1
            if there == size:
                return path.read_bytes()
            if there != before:
                before, deadline = there, time.monotonic() + _ARRIVAL
            time.sleep(_QUICK)
        raise LostError(
            f"{path.name} of the ranks has not come within {_ARRIVAL:g} s",
            "the way to their hosts is broken",
            "%ranks status",
        )

    def _tell_failure(self) -> None:
        first = self._first_error()
        assert first is not None
        data = self._arrived(error_file(self._folder, first.cell, first.rank), first.error or 0)
        kind = outcome.Raised(*pickle.loads(data)).kind
        note(
            f"rank {first.rank} has failed ({kind}), and the cell goes on in "
            f"{label(self._lacking())}: wait for it, or interrupt it"
        )

    def _interrupt(self, bar: Bar, interrupts: Interrupts) -> None:
        """Interrupt the ranks, and say which of them does not come out of the cell."""
        self._output.hold()
        try:
            self.run.interrupt()
            self._follow(bar, interrupts, _REACTION)
        except TimeoutError:
            bar.hide()
            self._tell_stuck()
        except ShantyError as error:
            note(str(error))
        finally:
            self._output.release()

    def _tell_stuck(self) -> None:
        stuck = self._lacking()
        note(f"{label(stuck)} cannot be interrupted. New ranks are had by `%ranks restart`")
        try:
            answers = {answer["rank"]: answer for answer in self.run.stacks()}
        except ShantyError:
            return
        for rank in stuck:
            if rank in answers:
                print(f"rank {rank}:\n{text_of(answers[rank], all_threads=False)}", file=sys.stderr)

    # ------------------------------------------------------------------------ their state

    @property
    def ended(self) -> bool:
        """Whether the ranks have ended."""
        return self.run.done or self._feed.broken

    def describe(self) -> str:
        """Say which ranks there are, where, and what they do."""
        self._look()
        status = self.run.status
        lacking = self._lacking()
        size = self._size or status.ranks
        ranks = counted(size, "rank") if size else "? ranks"
        head = f"run {self.run.id} · {status.state.value} · {ranks}"
        lines = [head]
        for rank in range(size or 0):
            host = self._hosts.get(rank, "")
            busy = rank in lacking
            since = f"cell {self._cell} for {time.monotonic() - self._began:.0f} s"
            lines.append(f"  {rank:>3}  {host:<20} {since if busy else 'idle'}")
        return "\n".join(lines)

    def stop(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """End the ranks: in good order where they are idle."""
        atexit.unregister(self.stop)
        if self._pid != os.getpid():  # a child of the notebook's, at its exit
            return
        self._feed.close()
        if not self._lacking():
            with contextlib.suppress(TimeoutError):
                self.run.wait(_LEAVING)
        if not self.run.done:
            self.run.stop(1.0)
            self.run.wait(20.0)
        say(f"run {self.run.id} has ended")
