"""Brings the hosts of a run together, step by step, on behalf of the lead.

First a warden on every worker, then every host made ready for ranks, then the launcher; and at
the end everybody home. A host that fails in any of it ends the run, by its name.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Dict, Mapping, Set

from shanty.carry.agent.channel import readable
from shanty.carry.agent.clocks import Clocks
from shanty.carry.agent.fleet import Fleet, Worker
from shanty.carry.agent.identity import free_port
from shanty.carry.agent.verdicts import TOP
from shanty.carry.agent.world import signal_name
from shanty.carry.rank.ssh import SOCKET
from shanty.carry.spec import Failure

if TYPE_CHECKING:
    import select

    from shanty.carry.agent.lead import Lead

_HOME = 75.0  # seconds for the next of the workers' last files to come in
_POLLIN = 1


class Muster:
    """The steps of one run over several hosts."""

    def __init__(self, lead: Lead) -> None:
        self.lead = lead
        self.plan = lead.plan
        self.fleet = Fleet(lead.run_dir, lead.plan, self._hear_worker)
        self.launched = False
        self._clocks = Clocks()
        self._placed = False
        self._own_ready = False
        self._listener = -1
        self._polled: Set[int] = set()
        _allow_many_files()
        self.fleet.start()

    def serve(self, fd: int) -> None:
        """Take what came from a worker, or a call for ssh."""
        if fd == self._listener:
            self.fleet.relay.accept()
            return
        worker = self.fleet.sources.get(fd)
        if worker is not None:
            self.fleet.receive(worker)

    def advance(self, poll: select.poll) -> None:
        """Do the next step when the one before is done; watch over the workers."""
        self.fleet.tick(time.monotonic())
        if self.fleet.failure is not None and not self.lead.ending:
            self.lead.condemn(self.fleet.failure, 0.0)
        if not self.lead.ending:
            if not self._placed and self.fleet.here:
                self._placed = True
                shared = self._shared()
                self.fleet.place(shared)
                self.lead.warden.send(place=self.plan["place"], shared=shared)
            if self._own_ready and self.fleet.ready and not self.launched:
                self._launch()
        self._watch_daemons()
        wanted = set(self.fleet.sources)
        if self._listener >= 0:
            wanted.add(self._listener)
        for fd in self._polled - wanted:
            poll.unregister(fd)
        for fd in wanted - self._polled:
            poll.register(fd, _POLLIN)
        self._polled = wanted

    def _shared(self) -> Dict[str, str]:
        """What is set on all hosts alike: among it where frameworks meet, on rank 0's host."""
        first = self.plan["first"]
        ports = {worker.host["index"]: worker.port for worker in self.fleet.workers}
        port = ports[first] if first in ports else free_port()
        return {"MASTER_PORT": str(port), **self.plan["shared"]}

    def _launch(self) -> None:
        self.launched = True
        path = os.path.join(self.plan["scratch"], "ssh")
        self._listener = self.fleet.relay.listen(path)
        self.lead.event("launching", hosts=len(self.fleet.workers) + 1)
        shim = str(self.lead.run_dir.bin / "ssh")
        self.lead.warden.send(launch={**self.plan["env"], SOCKET: path, "SHANTY_SHIM": shim})

    def hear_own(self, message: Mapping[str, Any]) -> None:
        """What the lead host's own warden says of its host."""
        if "ready" in message:
            self._own_ready = True
        elif "unready" in message:
            host = self.plan["name"]
            self.lead.condemn(Failure(f"host {host}: {message['unready']}", host=host), 0.0)

    def _hear_worker(self, worker: Worker, message: Mapping[str, Any]) -> None:
        if "sent" in message:
            self._clocks.hear(worker.name, message["sent"], time.monotonic())
        if "report" in message:
            report = message["report"]
            if "at" in report:
                report = {**report, "at": self._clocks.here(worker.name, report["at"])}
            self.lead.report(report, worker.name)
        elif "moves" in message:
            self.lead.stalls.hear(worker.name, message)
        elif "roll" in message:
            self.lead.worlds[message["roll"]].awaited.discard(worker.name)
        elif "gone" in message:
            self.lead.event("swept", host=worker.name, removed=message["gone"])
            if not message.get("whole", True):
                what = f"host {worker.name} could not send all of its files"
                why = "nothing of them went through for a minute"
                folder = worker.host["place"]["set"]["SHANTY_RUN_DIR"]
                fix = f"they are on the host, in {folder}"
                self.fleet.failure = Failure(what, why, fix, host=worker.name)

    def _watch_daemons(self) -> None:
        """A launcher's daemon that was killed takes its host out of the run."""
        killed = self.fleet.relay.killed
        if killed is None or self.lead.ending:
            return
        host, number = killed
        world = self.lead.worlds.get(TOP)
        if world is not None and world.over_since is not None:
            return  # how it goes at the end is the launcher's own business
        failure = Failure(
            f"the launcher's daemon on host {host} was ended by {signal_name(number)}",
            "without it the ranks there cannot be led",
            "look for the killer in the host's log (out of memory?); run again",
            host=host,
        )
        self.lead.condemn(failure, 0.0)

    def dismiss(self) -> None:
        """The lead host is done: let the workers send the rest and go."""
        self.fleet.send(leave=True)
        began, stopped = time.monotonic(), self.lead.stopped
        while not self.fleet.done and time.monotonic() < max(began, self.fleet.stored) + _HOME:
            self.lead.beats.turn()
            self.lead.answer_asks()
            if self.lead.stopped != stopped:
                break  # whoever stops the run now does without the rest of its files
            sources = self.fleet.sources
            for fd in readable(sources, 0.25):
                self.fleet.receive(sources[fd])
            self.fleet.tick(time.monotonic())
        if self.fleet.failure is not None and self.lead.code is None and not self.lead.stopped:
            self.lead.condemn(self.fleet.failure, 0.0)
        for host in self.fleet.finish():
            self.lead.event("unswept", host=host)


def _allow_many_files() -> None:
    """Each host takes some descriptors, and the usual limit of 1024 is meant for select(2)."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
