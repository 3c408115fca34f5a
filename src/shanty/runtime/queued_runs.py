"""Decides the status of runs that get their hosts from a queue: by their files, and by the queue.

This is done where the queue can be asked, which may be a login node without shanty.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar, Collection, Dict, Mapping, NamedTuple, Optional, Protocol

from shanty.runtime import run_agents, run_status, site
from shanty.runtime.errors import STOPPED_EXIT, LostError
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.site import Site
from shanty.runtime.spec import HOST, Failure, State, Status

_FORGOTTEN = 10.0  # seconds for the agents to have the last word after the queue has forgotten
_OLD = 10.0  # seconds that an answer of the queue is good for
_DOUBTFUL = 1.0  # the same where the run's own files say something else


class Ending(NamedTuple):
    """How a queue has ended a run."""

    state: State
    failure: Optional[Failure]
    code: int


class Entry(NamedTuple):
    """What a queue knows of a run: whether it `waits` for hosts, and why; or how it was ended."""

    waits: bool
    reason: str = ""
    ending: Optional[Ending] = None


class QueueQuery(Protocol):
    """What a queue is asked about runs that are in it."""

    scheme: ClassVar[str]

    def look(self, names: Collection[str], age: float = 0.0) -> Mapping[str, Entry]:
        """What the queue knows of these runs, asked all at once; those it has forgotten are left
        out. An answer that is up to `age` seconds old will do."""

    def dequeue(self, name: str) -> None:
        """Take a run out of the queue, and its hosts from it if it has any."""


class QueuedRuns:
    """The runs of a queue, from where the queue can be asked."""

    def __init__(self, queue: QueueQuery) -> None:
        self.queue = queue

    def describe(self, runs: Collection[RunDir]) -> Dict[RunDir, Status]:
        """Where the runs stand: while they wait, as the queue says, which is asked once for all."""
        found = {run: run_status.read_status(run) for run in runs}
        names = {
            run: (site.read(run) or Site()).name
            for run, status in found.items()
            if not status.state.final
        }
        names = {run: name for run, name in names.items() if name}  # others are being queued
        known = self.queue.look(list(names.values()), _OLD) if names else {}
        doubtful = {
            run: name
            for run, name in names.items()
            if name not in known or (known[name].waits and found[run].state is not State.PENDING)
        }
        if doubtful:  # the answer may be of a time before it began, or was even queued
            known = {**known, **self.queue.look(list(names.values()), _DOUBTFUL)}
        for run, name in names.items():
            found[run] = self._judged(run, name, known.get(name))
        return found

    def _judged(self, run: RunDir, name: str, entry: Optional[Entry]) -> Status:
        status = run_status.read_status(run)  # it may have ended while the queue was asked
        if status.state.final:
            return status
        agents = read_json(run.agents)
        if entry is not None and entry.ending is not None:
            ending = entry.ending
            if entry.waits:  # it would wait indefinitely
                self.queue.dequeue(name)
            return run_status.conclude(run, ending.state, ending.failure, ending.code)
        if entry is not None and entry.waits:
            before = status.reason if status.state is State.PENDING else ""  # it was taken back
            reason = "; ".join(filter(None, [before, entry.reason]))
            return replace(status, state=State.PENDING, reason=reason)
        here = agents is not None and run_agents.is_here(agents)
        gone = here and not run_agents.are_alive(agents or {})
        if entry is None and (gone or not run_agents.has_agents_here(run)):
            return self._forgotten(run, status)
        if gone:  # where it is pending, another attempt may be about to begin
            return status if status.state is State.PENDING else run_agents.status_of(run)
        if entry is not None and status.state is State.PENDING:
            return replace(status, reason=entry.reason or status.reason)
        return status

    def _forgotten(self, run: RunDir, status: Status) -> Status:
        """The queue knows nothing of the run: either it is about to end, or it is lost."""
        latest = max(path.stat().st_mtime for path in (run.status, run.events) if path.exists())
        if time.time() < latest + _FORGOTTEN:
            return status
        failure = Failure(
            f"{self.queue.scheme} no longer knows the run, and its agents are gone",
            "its hosts were taken back, or it was taken out of the queue",
            "run again",
            cause=HOST,
        )
        agents = read_json(run.agents)
        if agents is not None and run_agents.is_here(agents):
            run_agents.end_remains(run)
        return run_status.conclude(run, State.LOST, failure, LostError.exit_code)

    def cancel(self, run: RunDir, grace: float) -> Dict[str, Any]:
        """End the run, with SIGKILL after `grace` seconds; a run that waits leaves the queue."""
        status = self.describe([run])[run]
        found = site.read(run) or Site()
        if status.state.final:
            return {"ok": True, "error": "the run has ended"}
        if not found.name:
            return {"ok": False, "error": "the run is being queued"}
        if status.state is not State.PENDING or found.within:
            try:
                return run_agents.ask(run, {"kind": "stop", "grace": grace})
            except LostError:  # its lead host is gone, and the queue does not know it yet
                if found.within:
                    raise
        self.queue.dequeue(found.name)
        run_status.conclude(run, State.STOPPED, None, STOPPED_EXIT)
        return {"ok": True, "error": ""}

    def stacks(self, run: RunDir) -> Dict[str, Any]:
        """Ask for the stack of every rank."""
        if self.describe([run])[run].state is State.PENDING:
            return {"ok": False, "error": "the run has no hosts yet"}
        return run_agents.ask(run, {"kind": "stacks"})

    def signal(self, run: RunDir, number: int) -> Dict[str, Any]:
        """Send a signal to every rank that catches it."""
        if self.describe([run])[run].state is State.PENDING:
            return {"ok": False, "error": "the run has no hosts yet"}
        return run_agents.ask(run, {"kind": "warn", "signal": number})
