"""Brings the hosts of a run together, step by step, on behalf of the controller.

First a node agent on every worker, then every host made ready for ranks, then the launcher; and at
the end everybody home. A host that fails in any of it ends the run, by its name.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Any, Dict, Mapping, Set

from shanty.runtime.agent.channel import readable
from shanty.runtime.agent.mpi_world import signal_name
from shanty.runtime.agent.root_cause import TOP
from shanty.runtime.agent.run_control import RunControl
from shanty.runtime.agent.worker import Worker
from shanty.runtime.agent.workers import Workers
from shanty.runtime.localhost import free_port
from shanty.runtime.rank.rsh_client import SOCKET
from shanty.runtime.spec import Failure

_HOME = 75.0  # seconds for the next of the workers' last files to come in
_POLLIN = 1


class Startup:
    """The steps of one run over several hosts."""

    def __init__(self, controller: RunControl) -> None:
        self.controller = controller
        self.plan = controller.plan
        self.workers = Workers(controller.run_dir, controller.plan, self._hear_worker)
        self.launched = False
        self._placed = False
        self._own_ready = False
        self._listener = -1
        self._polled: Set[int] = set()
        _allow_many_files()
        self.workers.start()

    def serve(self, fd: int) -> None:
        """Take what came from a worker, or a call for ssh."""
        if fd == self._listener:
            self.workers.rsh.accept()
            return
        worker = self.workers.sources.get(fd)
        if worker is not None:
            self.workers.receive(worker)

    def advance(self, poll: select.poll) -> None:
        """Do the next step when the one before is done; watch over the workers."""
        self.workers.tick(time.monotonic())
        if self.workers.failure is not None and not self.controller.ending:
            self.controller.condemn(self.workers.failure, 0.0)
        if not self.controller.ending:
            if not self._placed and self.workers.here:
                self._placed = True
                shared = self._shared()
                self.workers.prepare(shared)
                self.controller.agent.send(prepare=shared)
            if self._own_ready and self.workers.ready and not self.launched:
                self._launch()
        self._watch_daemons()
        wanted = set(self.workers.sources)
        if self._listener >= 0:
            wanted.add(self._listener)
        for fd in self._polled - wanted:
            poll.unregister(fd)
        for fd in wanted - self._polled:
            poll.register(fd, _POLLIN)
        self._polled = wanted

    def _shared(self) -> Dict[str, str]:
        """What is set on all hosts alike: among it where frameworks meet, on rank 0's host."""
        first = self.plan.attempt.first
        ports = {worker.node.number: worker.port for worker in self.workers.workers}
        port = ports[first] if first in ports else free_port()
        return {"MASTER_PORT": str(port), **self.plan.attempt.shared}

    def _launch(self) -> None:
        self.launched = True
        path = os.path.join(self.plan.scratch, "ssh")
        self._listener = self.workers.rsh.listen(path)
        self.controller.event("launching", hosts=len(self.workers.workers) + 1)
        shim = str(self.controller.run_dir.bin / "ssh")
        self.controller.agent.send(
            launch={**self.plan.attempt.environment, SOCKET: path, "SHANTY_SHIM": shim}
        )

    def lead_ready(self) -> None:
        """Take it that the lead host is ready for ranks."""
        self._own_ready = True

    def _hear_worker(self, worker: Worker, message: Mapping[str, Any]) -> None:
        if "sent" in message:
            worker.clock.hear(message["sent"], time.monotonic())
        if "report" in message:
            report = message["report"]
            if "at" in report:
                report = {**report, "at": worker.clock.here(report["at"])}
            self.controller.report(report, worker.name)
        elif "moves" in message:
            self.controller.saw(worker.name, message)
        elif "roll" in message:
            self.controller.worlds[message["roll"]].awaited.discard(worker.name)
        elif "gone" in message:
            self.controller.event("swept", host=worker.name, removed=message["gone"])
            if not message.get("whole", True):
                what = f"host {worker.name} could not send all of its files"
                why = "nothing of them went through for a minute"
                folder = worker.node.run_dir
                fix = f"they are on the host, in {folder}"
                self.workers.failure = Failure(what, why, fix, host=worker.name)

    def _watch_daemons(self) -> None:
        """A launcher's daemon that was killed takes its host out of the run."""
        killed = self.workers.rsh.killed
        if killed is None or self.controller.ending:
            return
        host, number = killed
        world = self.controller.worlds.get(TOP)
        if world is not None and world.over_since is not None:
            return  # how it goes at the end is the launcher's own business
        failure = Failure(
            f"the launcher's daemon on host {host} was ended by {signal_name(number)}",
            "without it the ranks there cannot be led",
            "look for the killer in the host's log (out of memory?); run again",
            host=host,
        )
        self.controller.condemn(failure, 0.0)

    def dismiss(self, how: str) -> None:
        """Let the workers send the rest and go, "for good" or "for now"."""
        self.workers.send(leave=how)
        began, stopped = time.monotonic(), self.controller.stopped
        while not self.workers.done and time.monotonic() < max(began, self.workers.stored) + _HOME:
            self.controller.heartbeat.turn()
            self.controller.answer_asks()
            if self.controller.stopped != stopped:
                break  # whoever stops the run now does without the rest of its files
            sources = self.workers.sources
            for fd in readable(sources, 0.25):
                self.workers.receive(sources[fd])
            self.workers.tick(time.monotonic())
        if (
            self.workers.failure is not None
            and self.controller.code is None
            and not self.controller.stopped
        ):
            self.controller.condemn(self.workers.failure, 0.0)
        for host in self.workers.finish():
            self.controller.event("unswept", host=host)


def _allow_many_files() -> None:
    """Each host takes some descriptors, and the usual limit of 1024 is meant for select(2)."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
