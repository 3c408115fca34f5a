"""Manages the node agents of the other hosts of a run, over one connection each.

First a node agent on every worker, then every host made ready for ranks, then the launcher; at the
end their last files. A host that fails in any of it, or falls silent, ends the run, by its name.
The launcher's daemons are started by them, too, when the launcher asks for it (`rsh_server`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import select
import subprocess
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set

from shanty.runtime import addresses
from shanty.runtime.agent.channel import readable
from shanty.runtime.agent.connections import REAP, RESET, RUN_AGENT, request_command
from shanty.runtime.agent.mpi_world import signal_name
from shanty.runtime.agent.node_agent import SILENCE
from shanty.runtime.agent.root_cause import TOP
from shanty.runtime.agent.rsh_server import RshServer
from shanty.runtime.agent.run_control import RunControl
from shanty.runtime.agent.run_folder import removed
from shanty.runtime.agent.worker import Worker
from shanty.runtime.mirror import APPENDED, REPLACED, Change, may_write, put
from shanty.runtime.rank.rsh_client import SOCKET
from shanty.runtime.spec import HOST, Failure

CONNECTING = 20.0  # seconds for ssh to bring a node agent up
_LEAVING = 2.0  # seconds for an ssh that has nothing more to do
# What ssh says where the network is at fault.
_CUT = re.compile(r"Broken pipe|reset by peer|timed out|Timeout, server|No route|unreachable")
_OF_SSH = 255  # the exit code of an ssh that failed itself
_REAPING = 6.0  # seconds to end what a killed node agent left behind
_LAST_FILES = 75.0  # seconds for the next of the workers' last files to come in


class Workers:
    """The workers of a run. They begin at once."""

    def __init__(self, controller: RunControl) -> None:
        self.controller = controller
        self.run = controller.run_dir
        self.plan = controller.plan
        self.workers: List[Worker] = []
        self.failure: Optional[Failure] = None
        self.began = time.time()
        self.stored = 0.0  # when the last piece of a file came
        self.launched = False
        self.lead_ready = False
        self._prepared = False
        self._listener = -1  # where the launcher's calls for ssh come in
        self._polled: Set[int] = set()
        self._begun: Dict[str, Worker] = {}  # artifacts, and whose they are
        self._reapers: List[subprocess.Popen[bytes]] = []
        self.rsh = RshServer(self.worker_of, self.plan)
        _allow_many_files()
        self._start()

    def _start(self) -> None:
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

    def serve(self, fd: int) -> None:
        """Take what came from a worker, or a call for ssh."""
        if fd == self._listener:
            self.rsh.accept()
            return
        worker = self.sources.get(fd)
        if worker is not None:
            self._receive(worker)

    def judge(self, now: float) -> None:
        """Give up workers that have been silent for too long; a lost one ends the run."""
        self._tick(now)
        if self.failure is not None and not self.controller.ending:
            self.controller.condemn(self.failure, 0.0)

    def advance(self, poll: select.poll) -> None:
        """Do the next step when the one before is done."""
        if not self.controller.ending:
            states = {worker.state for worker in self.workers}
            if not self._prepared and states == {"here"}:
                self._prepared = True
                self.controller.tell(prepare=self._shared())
            if self.lead_ready and states == {"ready"} and not self.launched:
                self._launch()
        self._watch_daemons()
        wanted = set(self.sources)
        if self._listener >= 0:
            wanted.add(self._listener)
        for fd in self._polled - wanted:
            poll.unregister(fd)
        for fd in wanted - self._polled:
            poll.register(fd, select.POLLIN)
        self._polled = wanted

    def _shared(self) -> Dict[str, str]:
        """Variables set on all hosts alike, with what is free on which of them."""
        attempt, lead = self.plan.attempt, self.plan.lead
        ports = {worker.node.number: worker.ports for worker in self.workers}
        ports[lead.number] = addresses.ports_of_host(attempt, lead)
        return {**addresses.variables(attempt, ports), **attempt.shared}

    def _launch(self) -> None:
        self.launched = True
        # In a container the launcher has a /tmp of its own.
        folder = self.run.of_attempt if self.plan.lead.container else self.plan.scratch
        path = os.path.join(folder, "ssh")
        self._listener = self.rsh.listen(path)
        self.controller.event("launching", hosts=len(self.workers) + 1)
        shim = str(self.controller.run_dir.bin / "ssh")
        self.controller.agent.send(
            launch={**self.plan.attempt.environment, SOCKET: path, "SHANTY_SHIM": shim}
        )

    def _receive(self, worker: Worker) -> None:
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
            worker.ports, worker.state = list(map(int, message["hello"])), "here"
        elif "ready" in message:
            worker.state = "ready"
            self.controller.settings[worker.name] = message.get("settings", {})
        elif "unready" in message:
            self._lose(worker, Failure(f"host {worker.name}: {message['unready']}"))
        elif "gone" in message:
            worker.state = "gone"
            worker.channel.send(bye=True)
            self.controller.event("swept", host=worker.name, removed=message["gone"])
            if message.get("lost"):
                self.failure = self.failure or removed(worker.name, worker.node.run_dir)
            if not message.get("whole", True):
                self.failure = Failure(
                    f"host {worker.name} could not send all of its files",
                    "nothing of them went through for a minute",
                    f"they are on the host, in {worker.node.run_dir}",
                    host=worker.name,
                )
        else:
            if "sent" in message:
                worker.clock.hear(message["sent"], time.monotonic())
            if "sample" in message:
                message = {**message, "sent": worker.clock.here(message["sent"])}
            report = message.get("report", {})
            if "at" in report:
                report["at"] = worker.clock.here(report["at"])
            self.controller.hear(message, worker.name)

    def send(self, **message: Any) -> None:
        """Tell all node agents the same."""
        for worker in self.workers:
            if worker.live:
                worker.channel.send(**message)

    def send_to(self, name: str, **message: Any) -> None:
        """Tell the node agent of one host."""
        for worker in self.workers:
            if worker.name == name and worker.live:
                worker.channel.send(**message)

    def _tick(self, now: float) -> None:
        """Give up workers that are gone, or have been silent for too long."""
        for worker in self.workers:
            worker.channel.flush()
            if worker.live and not worker.channel.open:
                self._receive(worker)  # a word to it could not be written: it was not polled since
            if worker.live:
                patience = CONNECTING if worker.state == "connecting" else SILENCE
                if worker.silence.is_over(now, patience):
                    allowed = worker.silence.patience(patience)
                    self._lose(worker, self._silent(worker, allowed))

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
            port = worker.node.connection.get("port")
            return Failure(
                f"host {worker.name} could not be reached from {self.plan.lead.name} within "
                f"{patience:.0f} s",
                self._words(worker),
                f"the lead host must reach {worker.node.address}"
                + (f" port {port}" if port else ""),
                host=worker.name,
            )
        others = [w for w in self.workers if w is not worker and w.state != "lost"]
        if others and all(w.silence.seconds > patience / 2 for w in others):
            names = ", ".join(w.name for w in self.workers)
            return Failure(
                f"the lead host {self.plan.lead.name} has lost all other hosts at once ({names})",
                f"none of them was heard for {patience:.0f} s: its own network is down",
                "see to the host and its network; run again",
                host=self.plan.lead.name,
                cause=HOST,
            )
        return Failure(
            f"host {worker.name} has not been heard for {patience:.0f} s",
            "it is cut off from the network, frozen, or was started anew",
            "see to the host and its network; run again",
            host=worker.name,
            cause=HOST,
        )

    def _ended(self, worker: Worker) -> Failure:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(_LEAVING)
        words = self._words(worker)
        code = worker.process.returncode
        if worker.node.container and code not in (None, _OF_SSH):
            from shanty.runtime.containers.words import ended

            return ended(worker.node, code, words, began=worker.state != "connecting")
        if worker.state == "connecting":
            return Failure(
                f"host {worker.name} cannot be entered from {self.plan.lead.name}",
                words or "ssh gave no reason",
                "see `shanty logs --agent`",
                host=worker.name,
            )
        silent = worker.silence.seconds
        if _CUT.search(words) or silent > SILENCE / 2:
            return Failure(
                f"the connection to host {worker.name} was lost",
                words or f"nothing had come from it for {silent:.0f} s",
                "see to the host and its network: a firewall, or another machine that has taken "
                "its address; run again",
                host=worker.name,
                cause=HOST,
            )
        return Failure(
            f"the node agent on host {worker.name} was killed, or the host went away",
            words or "its connection to the controller has ended without a word",
            "look for the killer in the host's log (out of memory?); run again",
            host=worker.name,
            cause=HOST,
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
            if owner is None and not self._is_of_now(path):
                self._begun[path] = owner = worker
            if owner is not worker:  # two hosts have saved a file of that name: keep both
                path = f"artifacts/{worker.name}/{path[len('artifacts/') :]}"
            if message["offset"] == 0:  # one of an attempt before may be longer
                with contextlib.suppress(OSError):
                    os.unlink(self.run.path / path)
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

    def _is_of_now(self, path: str) -> bool:
        """True for a file that was changed in this attempt."""
        with contextlib.suppress(OSError):
            return os.stat(self.run.path / path).st_ctime >= self.began
        return False

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

    def _watch_daemons(self) -> None:
        """A launcher's daemon that was killed takes its host out of the run."""
        killed = self.rsh.killed
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
            cause=HOST,
        )
        self.controller.condemn(failure, 0.0)

    def dismiss(self, how: str) -> None:
        """Let the workers send the rest and go, "for good" or "for now"."""
        self.send(leave=how)
        began, stopped = time.monotonic(), self.controller.stopped
        while (
            any(worker.live for worker in self.workers)
            and time.monotonic() < max(began, self.stored) + _LAST_FILES
        ):
            self.controller.heartbeat.turn()
            self.controller.answer_asks()
            if self.controller.stopped != stopped:
                break  # whoever stops the run now does without the rest of its files
            sources = self.sources
            for fd in readable(sources, 0.25):
                self._receive(sources[fd])
            self._tick(time.monotonic())
        controller = self.controller
        if self.failure is not None and controller.code is None and not controller.stopped:
            controller.condemn(self.failure, 0.0)
        for host in self._finish():
            self.controller.event("unswept", host=host)

    def _finish(self) -> Iterator[str]:
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


def _allow_many_files() -> None:
    """Each host takes some descriptors, and the usual limit of 1024 is meant for select(2)."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
