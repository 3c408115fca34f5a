"""Manages the node agents of the other hosts of a run, over one connection each.

They are started, have their hosts made ready, are heard, and missed when one falls silent. The
launcher's daemons are started by them, too, when the launcher asks for it (`rsh_server`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from shanty.runtime.agent.connections import REAP, RESET, RUN_AGENT, request_command
from shanty.runtime.agent.node_agent import SILENCE
from shanty.runtime.agent.rsh_server import RshServer
from shanty.runtime.agent.worker import Worker
from shanty.runtime.mirror import APPENDED, REPLACED, Change, may_write, put
from shanty.runtime.plan import Node, Plan
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure

CONNECTING = 20.0  # seconds for ssh to bring a node agent up
_LEAVING = 2.0  # seconds for an ssh that has nothing more to do
_REAPING = 6.0  # seconds to end what a killed node agent left behind


class Workers:
    """The workers of a run. `hear` is given what the controller itself has to know of."""

    def __init__(
        self,
        run: RunDir,
        plan: Plan,
        hear: Callable[[Worker, Mapping[str, Any]], None],
    ) -> None:
        self.run = run
        self.plan = plan
        self.workers: List[Worker] = []
        self.failure: Optional[Failure] = None
        self.stored = 0.0  # when the last piece of a file came
        self._hear = hear
        self._begun: Dict[str, Worker] = {}  # artifacts, and whose they are
        self._reapers: List[subprocess.Popen[bytes]] = []
        self.rsh = RshServer(self.worker_of, plan.lead.mpi["prefix"])

    def start(self) -> None:
        """Call up the node agents of all workers, side by side."""
        for node in self.plan.workers:
            log = os.open(
                self.run.logs / f"ssh-{node.number}.log",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
            try:
                process = subprocess.Popen(
                    request_command(node, self.plan.lead, RUN_AGENT),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                name = self.plan.lead.name
                self.failure = Failure(
                    f"the lead host {name} cannot run ssh",
                    error.strerror or str(error),
                    f"install OpenSSH's client on {name} (Debian, Ubuntu: openssh-client)",
                    host=name,
                )
                return
            finally:
                os.close(log)
            worker = Worker(node, process)
            worker.channel.send(plan=self.plan.of_worker(node).to_json())
            self.workers.append(worker)

    @property
    def sources(self) -> Dict[int, Worker]:
        """The descriptors to poll, and whose they are."""
        return {w.channel.source: w for w in self.workers if w.channel.open and w.state != "lost"}

    @property
    def ready(self) -> bool:
        """True when every host is ready for ranks."""
        return all(worker.state == "ready" for worker in self.workers)

    @property
    def done(self) -> bool:
        """True when nobody is to be waited for any more."""
        return not any(worker.live for worker in self.workers)

    def receive(self, worker: Worker) -> None:
        """Take what a worker's node agent has sent."""
        for message in worker.channel.receive():
            worker.silence.heard()
            try:
                self._take(worker, message)
            except (KeyError, TypeError, ValueError) as error:
                what = (
                    f"the node agent on host {worker.name} sent what is no message of a node agent"
                )
                why = f"{type(error).__name__}: {error}"
                self._lose(worker, Failure(what, why, "look at the host", host=worker.name))
        if not worker.channel.open and worker.live:
            self._lose(worker, self._ended(worker))

    def _take(self, worker: Worker, message: Mapping[str, Any]) -> None:
        if "file" in message:
            self._store(worker, message)
        elif "daemon" in message:
            self.rsh.answer(message)
        elif "hello" in message:
            worker.port, worker.state = int(message["hello"]), "here"
        elif "ready" in message:
            worker.state = "ready"
        elif "unready" in message:
            self._lose(worker, Failure(f"host {worker.name}: {message['unready']}"))
        elif "gone" in message:
            worker.state = "gone"
            worker.channel.send(bye=True)
            self._hear(worker, message)
        else:
            self._hear(worker, message)

    @property
    def here(self) -> bool:
        """True when every worker's node agent is up and its host has still to be made ready."""
        return all(worker.state == "here" for worker in self.workers)

    def prepare(self, shared: Mapping[str, str]) -> None:
        """Make the hosts ready for ranks; `shared` is set on all of them."""
        for worker in self.workers:
            worker.channel.send(prepare=dict(shared))

    def send(self, **message: Any) -> None:
        """Tell all node agents the same."""
        for worker in self.workers:
            if worker.live:
                worker.channel.send(**message)

    def tick(self, now: float) -> None:
        """What is due by the clock: who has been silent for too long."""
        for worker in self.workers:
            worker.channel.flush()
            if worker.live:
                patience = CONNECTING if worker.state == "connecting" else SILENCE
                if worker.silence.look(now) > patience:
                    self._lose(worker, self._silent(worker, patience))

    def _lose(self, worker: Worker, failure: Failure) -> None:
        reachable = worker.state in ("here", "ready") and not worker.channel.open
        worker.state = "lost"
        worker.process.kill()
        self.rsh.lost(worker)
        if self.failure is None:
            self.failure = failure
        if reachable:  # its node agent is dead, the host is not
            request = RESET if self.plan.may_try_again else REAP
            self._reapers.append(
                subprocess.Popen(
                    request_command(worker.node, self.plan.lead, request),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def _silent(self, worker: Worker, patience: float) -> Failure:
        if worker.state == "connecting":
            return Failure(
                f"host {worker.name} could not be reached from {self.plan.lead.name} within "
                f"{patience:g} s",
                self._words(worker),
                f"the lead host must reach {worker.node.address}" + _port(worker.node),
                host=worker.name,
            )
        others = [w for w in self.workers if w is not worker and w.state != "lost"]
        if others and all(w.silence.seconds > patience / 2 for w in others):
            names = ", ".join(w.name for w in self.workers)
            return Failure(
                f"the lead host {self.plan.lead.name} has lost all other hosts at once ({names})",
                f"none of them was heard for {patience:g} s: its own network is down",
                "see to the host and its network; run again",
                host=self.plan.lead.name,
            )
        return Failure(
            f"host {worker.name} has not been heard for {patience:g} s",
            "it is cut off from the network, frozen, or was started anew",
            "see to the host and its network; run again",
            host=worker.name,
        )

    def _ended(self, worker: Worker) -> Failure:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(_LEAVING)
        words = self._words(worker)
        if worker.state == "connecting":
            return Failure(
                f"host {worker.name} cannot be entered from {self.plan.lead.name}",
                words or "ssh gave no reason",
                "see `shanty logs --agent`",
                host=worker.name,
            )
        return Failure(
            f"the node agent on host {worker.name} was killed, or the host went away",
            words or "its connection to the controller has ended without a word",
            "look for the killer in the host's log (out of memory?); run again",
            host=worker.name,
        )

    def _words(self, worker: Worker) -> str:
        with contextlib.suppress(OSError):
            path = self.run.logs / f"ssh-{worker.node.number}.log"
            lines = path.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    def _store(self, worker: Worker, message: Mapping[str, Any]) -> None:
        path = str(message["file"])
        if not may_write(path, (*APPENDED, *REPLACED)):
            return
        self.stored = time.monotonic()
        if path.startswith("artifacts/"):
            owner = self._begun.get(path)
            if owner is None and not (self.run.path / path).exists():
                self._begun[path] = owner = worker
            if owner is not worker:  # two hosts have saved a file of that name: keep both
                path = f"artifacts/{worker.name}/{path[len('artifacts/') :]}"
        data = base64.b64decode(message["data"])
        offset = message["offset"]
        try:
            if path == "metrics.jsonl":  # many hosts' lines
                with open(self.run.path / path, "ab") as file:
                    file.write(data)
            else:
                put(self.run.path, Change(path, offset, data))
        except OSError as error:
            name = self.plan.lead.name
            self.failure = self.failure or Failure(
                f"the lead host {name} cannot keep what {worker.name} sends: {error.strerror}",
                str(error.filename or ""),
                f"free some space on {name}",
                host=name,
            )

    def worker_of(self, name: str) -> Optional[Worker]:
        """The worker that `name` or an address stands for; None for strangers.

        Two hosts may share a name or address (a virtual network's) that the controller does not
        reach them by.
        """
        for worker in self.workers:
            if name in (worker.node.address, worker.name):
                return worker
        for worker in self.workers:
            if name in worker.node.names:
                return worker
        return None

    def finish(self) -> Iterator[str]:
        """End what is left of the connections; the names of hosts that could not be swept."""
        deadline = time.monotonic() + _LEAVING
        for worker in self.workers:
            worker.channel.drain(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.05, deadline - time.monotonic()))
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            if worker.state == "lost":
                yield worker.name
        for reaper in self._reapers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                reaper.wait(_REAPING)
            reaper.kill()
        self.rsh.close()


def _port(node: Node) -> str:
    port = node.connection.get("port")
    return f" port {port}" if port else ""
