"""Manages the node agents of the other hosts of a run, over one connection each.

It starts a node agent on every worker, has every host made ready for ranks, then the launcher
started, and receives the last files at the end. A host that fails in one of these steps, or falls
silent, ends the run, and the failure names it. The node agents also start the launcher's daemons
when the launcher asks for them (`rsh_server`).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import subprocess
import time
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from shanty.runtime import addresses, messages
from shanty.runtime.channel import readable
from shanty.runtime.connections import REAP, RESET, RUN_AGENT, request_command
from shanty.runtime.controller.rsh_server import RshServer
from shanty.runtime.controller.worker_link import ClockOffset, WorkerLink, WorkerState
from shanty.runtime.diagnosis.run_view import Actions
from shanty.runtime.diagnosis.signals import signal_name
from shanty.runtime.folder_watch import removed
from shanty.runtime.heartbeat import ELASTIC_SILENCE, SILENCE, STANDBY, FailureDetector
from shanty.runtime.messages import Launch, Prepare
from shanty.runtime.mirror import APPENDED, REPLACED, Change, may_write, put
from shanty.runtime.plan import Plan
from shanty.runtime.rank.rsh_client import SOCKET
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import CUT_OFF, HOST, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.messages import Message, Order

CONNECTING = 20.0  # seconds for ssh to bring a node agent up
# Seconds between the last signs of life of the hosts and of a command where all contact was lost at
# once, and seconds for which a lead host without contact waits for another one.
_IN_TOUCH, _OUT_OF_TOUCH = 2.5, 5.0
_LOOK = 0.2  # seconds between two looks for one
_LEAVING = 2.0  # seconds for an ssh that has nothing more to do
# An error of shanty's own, at the end of a traceback.
_ERROR = re.compile(
    r"^shanty\.runtime\.errors\.\w+: (.*)(?:\n  why: (.*))?(?:\n  fix: (.*))?\Z", re.MULTILINE
)
# The messages of ssh where the network is at fault.
_CUT = re.compile(r"Broken pipe|reset by peer|timed out|Timeout, server|No route|unreachable")
_OF_SSH = 255  # the exit code of an ssh that failed itself
_REAPING = 6.0  # seconds to end what a killed node agent left behind
_OF_SILENT = 2.5  # the same where the host may be down or cut off
_LAST_FILES = 75.0  # seconds for the next of the workers' last files to come in


class WorkerLinks:
    """The workers of a run, which are started at once."""

    def __init__(self, run: RunDir, plan: Plan, actions: Actions) -> None:
        self._run = run
        self._plan = plan
        self._actions = actions
        self._workers: List[WorkerLink] = []
        self._failure: Optional[Failure] = None
        # The host whose call of ssh is gone, which was asked for a sign of life; who gave it.
        self._asked: Optional[WorkerLink] = None
        self._answered: Optional[WorkerLink] = None
        self._began = time.time()
        self._stored = 0.0  # when the last piece of a file came
        self._prepared = False
        self.lead_is_ready = False  # for ranks
        self.has_launched = False  # the order to start the launcher was returned
        self._listener = -1  # where the launcher's calls for ssh come in
        self._polled: Set[int] = set()
        self._begun: Dict[str, WorkerLink] = {}  # artifacts, and the workers that send them
        self._reapers: Dict[str, Tuple[subprocess.Popen[bytes], float, float]] = {}
        self._rsh = RshServer(self.worker_of, self._plan)
        self._lost_hosts: Dict[str, Failure] = {}  # of an elastic run, see `take_lost`
        self._alone_since = math.inf
        _allow_many_files()
        self._start()

    def _start(self) -> None:
        """Start the node agents of all workers, in parallel."""
        for node in self._plan.workers:
            log = os.open(
                self._run.logs / f"ssh-{node.number}.log",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
            try:
                process = subprocess.Popen(
                    request_command(node, self._plan.lead, RUN_AGENT),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                name = self._plan.lead.name
                self._failure = Failure(
                    f"the lead host {name} cannot run ssh",
                    error.strerror or str(error),
                    f"install OpenSSH's client on {name} (Debian, Ubuntu: openssh-client)",
                    host=name,
                )
                return
            finally:
                os.close(log)
            worker = WorkerLink(node, process)
            worker.channel.send(messages.WorkerPlan(self._plan.of_worker(node).to_json()))
            self._workers.append(worker)

    @property
    def sources(self) -> Dict[int, WorkerLink]:
        """The descriptors to poll, with their workers."""
        return {
            w.channel.source: w
            for w in self._workers
            if w.channel.open and w.state is not WorkerState.LOST
        }

    def serve(self, fd: int) -> None:
        """Take messages of a worker, or a call of ssh."""
        if fd == self._listener:
            call = self._rsh.accept()
            if call is not None:
                callee, order = call
                callee.channel.send(order)
            return
        worker = self.sources.get(fd)
        if worker is not None:
            self._receive(worker)

    def judge(self, now: float, *, launcher_is_done: bool) -> Optional[Failure]:
        """Give up workers that have been silent for too long; return why the run has to end.

        launcher_is_done: the launcher itself now ends its daemons, by any signal.
        """
        self._tick(now)
        cut_off = self.is_cut_off(now)
        if cut_off is not False:
            return self._cut_off() if cut_off else None
        killed = self._rsh.killed
        if self._failure is None and killed is not None and not launcher_is_done:
            return _without_daemon(*killed)
        host = None if self._failure or launcher_is_done else self._rsh.dropped()
        if host is not None and host is not self._asked:
            self._asked, self._answered = host, None
            host.channel.send(messages.Flush(""))
        elif host is not None and host is self._answered:  # its loss was not the cause
            return _without_call(host.name, self._plan.lead.name)
        return self._failure

    def tolerate(self) -> None:
        """Let the run go on without hosts that are lost from now on."""
        self._rsh.is_elastic = True
        for worker in self._workers:
            worker.silence = FailureDetector()  # which has not seen how long the start took

    def give_up(self, name: str) -> None:
        """Keep the launcher from learning that its daemon on this host is lost."""
        for worker in self._workers:
            if worker.name == name:
                self._rsh.lost(worker)

    def without_daemon(self) -> Dict[str, int]:
        """Return the hosts whose daemon has ended, unknown to the launcher, and its exit code."""
        return self._rsh.without_daemon()

    def release_daemons(self) -> None:
        """Let the launcher know which daemons have ended."""
        self._rsh.release()

    @property
    def all_live(self) -> bool:
        """True while every host has a live node agent."""
        return all(worker.live for worker in self._workers)

    @property
    def any_lost(self) -> bool:
        """True when a host was given up."""
        return any(worker.state is WorkerState.LOST for worker in self._workers)

    def live_names(self) -> List[str]:
        """Return the hosts that have a live node agent."""
        return [worker.name for worker in self._workers if worker.live]

    def pids(self) -> Set[int]:
        """Return the processes that hold the connections."""
        return {worker.process.pid for worker in self._workers}

    def clocks(self) -> Dict[str, ClockOffset]:
        """Return the clock of each host."""
        return {worker.name: worker.clock for worker in self._workers}

    def advance(self, poll: select.poll, *, ending: bool) -> Union[Prepare, Launch, None]:
        """Return the next order once the previous one is done; `Launch` is for the lead host."""
        order: Union[Prepare, Launch, None] = None
        states = {worker.state for worker in self._workers}
        if not ending and not self._prepared and states == {WorkerState.HERE}:
            self._prepared = True
            order = Prepare(self._shared())
        ready = self.lead_is_ready and states == {WorkerState.READY}
        if not ending and ready and not self.has_launched:
            order = self._launch()
        self._poll_for(poll)
        return order

    def _poll_for(self, poll: select.poll) -> None:
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
        attempt, lead = self._plan.attempt, self._plan.lead
        ports: Dict[int, Sequence[int]] = {w.node.number: w.ports for w in self._workers}
        ports[lead.number] = addresses.ports_of_host(attempt, lead)
        return {**addresses.variables(attempt, ports), **attempt.shared}

    def _launch(self) -> Launch:
        self.has_launched = True
        # In a container the launcher has a /tmp of its own.
        folder = self._run.of_attempt if self._plan.lead.container else self._plan.scratch
        path = os.path.join(folder, "ssh")
        self._listener = self._rsh.listen(path)
        self._actions.event("launching", hosts=len(self._workers) + 1)
        shim = str(self._run.bin / "ssh")
        return Launch({**self._plan.attempt.environment, SOCKET: path, "SHANTY_SHIM": shim})

    def _receive(self, worker: WorkerLink) -> None:
        """Take the messages of a worker's node agent."""
        for message in worker.channel.receive():
            worker.silence.heard()
            if isinstance(message, messages.Malformed):
                what = f"the node agent on host {worker.name} sent an invalid message"
                fix = "check the host"
                self._lose(worker, Failure(what, message.why, fix, host=worker.name))
            else:
                self._take(worker, message)
        if not worker.channel.open and worker.live:
            self._lose(worker, self._ended(worker))

    def _take(self, worker: WorkerLink, message: Message) -> None:
        if isinstance(message, (messages.RankReport, messages.Sample, messages.Beat)):
            worker.clock.hear(message.sent, time.monotonic())
            worker.last_sent = worker.clock.here(message.sent)
        if isinstance(message, messages.Beat) and self._rsh.is_elastic:
            worker.channel.send(messages.Heard(message.sent))
        if isinstance(message, messages.FilePiece):
            self._store(worker, message)
        elif isinstance(message, (messages.DaemonOutput, messages.DaemonEnded)):
            self._rsh.answer(message)
        elif isinstance(message, messages.Flushed) and not message.world:
            self._answered = worker
        elif isinstance(message, messages.Hello):
            worker.ports, worker.state = message.ports, WorkerState.HERE
        elif isinstance(message, messages.Ready):
            worker.state = WorkerState.READY
            self._actions.heard(message, worker.name)
        elif isinstance(message, messages.Unready):
            self._lose(worker, Failure(f"host {worker.name}: {message.why}"))
        elif isinstance(message, messages.Gone):
            worker.state = WorkerState.GONE
            worker.channel.send(messages.Bye())
            self._actions.event("swept", host=worker.name, removed=message.removed)
            if message.lost:
                self._failure = self._failure or removed(worker.name, worker.node.run_dir)
            if not message.whole:
                self._failure = Failure(
                    f"host {worker.name} could not send all of its files",
                    "nothing arrived for a minute",
                    f"the files are on the host, in {worker.node.run_dir}",
                    host=worker.name,
                )
        else:
            self._actions.heard(_by_our_clock(message, worker.clock), worker.name)

    def send(self, order: Order) -> None:
        """Send an order to all node agents."""
        for worker in self._workers:
            if worker.live:
                worker.channel.send(order)

    def send_to(self, name: str, order: Order) -> None:
        """Send an order to the node agent of one host."""
        for worker in self._workers:
            if worker.name == name and worker.live:
                worker.channel.send(order)

    def _tick(self, now: float) -> None:
        """Give up workers that have gone, or have been silent for too long."""
        for worker in self._workers:
            worker.channel.flush()
            if worker.live and not worker.channel.open:
                self._receive(worker)  # a message could not be written: it was not polled since
            if worker.live:
                silence = ELASTIC_SILENCE if self._rsh.is_elastic else SILENCE
                patience = CONNECTING if worker.state is WorkerState.CONNECTING else silence
                if worker.silence.is_over(now, patience):
                    allowed = worker.silence.patience(patience)
                    self._lose(worker, self._silent(worker, allowed))

    def is_cut_off(self, now: float) -> Optional[bool]:
        """Whether the lead host has lost all contact; None while that is not clear.

        It has lost all workers, and about then the command that stands by to start the next attempt
        has fallen silent as well. Times are those at which something was sent, since messages wait
        in a socket while this host is frozen.
        """
        if not self.any_lost or not self.has_launched or any(each.live for each in self._workers):
            return False
        try:
            asked = os.stat(self._run.standby).st_mtime  # by the monotonic clock
        except OSError:
            return False
        last = max(worker.last_sent for worker in self._workers)
        if asked > last + _IN_TOUCH or asked < last - STANDBY:  # it asks, or was gone before
            return False
        self._alone_since = min(self._alone_since, now)
        return True if now > self._alone_since + _OUT_OF_TOUCH else None

    def wait_for_contact(self) -> bool:
        """Wait until it is clear whether this host is cut off; returns True if it is."""
        while (cut_off := self.is_cut_off(time.monotonic())) is None:
            time.sleep(_LOOK)
        return cut_off

    def take_lost(self, now: float) -> Dict[str, Failure]:
        """Return the hosts that an elastic run is to go on without, and why, each once."""
        if self.is_cut_off(now) is not False:
            return {}
        lost, self._lost_hosts = self._lost_hosts, {}
        return lost

    def _lose(self, worker: WorkerLink, failure: Failure) -> None:
        was_there = worker.state in (WorkerState.HERE, WorkerState.READY)
        silent = worker.channel.open
        worker.state = WorkerState.LOST
        worker.process.kill()
        self._rsh.lost(worker)
        if self._rsh.is_elastic:
            self._lost_hosts[worker.name] = failure
        elif self._failure is None:
            self._failure = failure
        if was_there:  # its node agent is dead or frozen; the host may be well
            request = RESET if self._plan.may_try_again else REAP
            process = subprocess.Popen(
                request_command(worker.node, self._plan.lead, request),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            since = time.monotonic() if self._rsh.is_elastic else math.inf  # else: its end is near
            self._reapers[worker.name] = process, since, _OF_SILENT if silent else _REAPING

    def _cut_off(self) -> Failure:
        """Return why the run ends on this host: others go on without it."""
        lead = self._plan.lead.name
        return Failure(
            f"the lead host {lead} was cut off, or was frozen",
            "the other hosts and `shanty run` have lost contact with it; `shanty run` starts the "
            "next attempt on the other hosts",
            "check the host and its network",
            host=lead,
            cause=CUT_OFF,
        )

    def _silent(self, worker: WorkerLink, patience: float) -> Failure:
        if worker.state is WorkerState.CONNECTING:
            port = worker.node.connection.get("port")
            return Failure(
                f"host {worker.name} could not be reached from {self._plan.lead.name} within "
                f"{patience:.0f} s",
                self._words(worker)[0],
                f"the lead host must reach {worker.node.address}"
                + (f" port {port}" if port else ""),
                host=worker.name,
            )
        others = [w for w in self._workers if w is not worker and w.state is not WorkerState.LOST]
        if (
            not self._rsh.is_elastic
            and others
            and all(w.silence.seconds > patience / 2 for w in others)
        ):
            names = ", ".join(w.name for w in self._workers)
            return Failure(
                f"the lead host {self._plan.lead.name} has lost all other hosts at once ({names})",
                f"none of them sent anything for {patience:.0f} s: its own network is down",
                "check the host and its network; run again",
                host=self._plan.lead.name,
                cause=HOST,
            )
        what = f"host {worker.name} has sent nothing for {patience:.0f} s"
        if self._rsh.is_elastic:
            what = f"host {worker.name} went silent (no sign of life for {patience:.0f} s)"
        return Failure(
            what,
            "it is cut off from the network, frozen, or was restarted",
            "check the host and its network; run again",
            host=worker.name,
            cause=HOST,
        )

    def _ended(self, worker: WorkerLink) -> Failure:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(_LEAVING)
        words, fix = self._words(worker)
        code = worker.process.returncode
        if worker.node.container and code not in (None, _OF_SSH):
            from shanty.runtime.containers.engine_errors import ended

            return ended(worker.node, code, words, began=worker.state is not WorkerState.CONNECTING)
        if worker.state is WorkerState.CONNECTING:
            return Failure(
                f"host {worker.name} cannot be entered from {self._plan.lead.name}",
                words or "ssh gave no reason",
                fix or "see `shanty logs --agent`",
                host=worker.name,
            )
        if code is not None and code < 0:
            return Failure(
                f"the connection to host {worker.name} was lost",
                f"its process on {self._plan.lead.name} was ended by {signal_name(-code)}",
                f"find out from the log of {self._plan.lead.name} who ended it; run again",
                host=worker.name,
                cause=HOST,
            )
        silent = worker.silence.seconds
        if _CUT.search(words) or silent > SILENCE / 2:
            return Failure(
                f"the connection to host {worker.name} was lost",
                words or f"it had sent nothing for {silent:.0f} s",
                "check the host and its network: a firewall, or another machine that has taken "
                "its address; run again",
                host=worker.name,
                cause=HOST,
            )
        return Failure(
            f"the node agent on host {worker.name} was killed, or the host went away",
            words or "its connection to the controller has ended",
            "find out from the host's log who killed it (out of memory?); run again",
            host=worker.name,
            cause=HOST,
        )

    def _words(self, worker: WorkerLink) -> Tuple[str, str]:
        """Return the last words of ssh, or of the node agent, and the fix that these give."""
        with contextlib.suppress(OSError):
            path = self._run.logs / f"ssh-{worker.node.number}.log"
            text = path.read_text(errors="replace").strip()
            error = _ERROR.search(text)
            if error is not None:
                return ": ".join(filter(None, error.group(1, 2))), error[3] or ""
            return text.rpartition("\n")[2], ""
        return "", ""

    def _store(self, worker: WorkerLink, piece: messages.FilePiece) -> None:
        path = piece.path
        if not may_write(path, (*APPENDED, *REPLACED)):
            return
        self._stored = time.monotonic()
        if path.startswith("artifacts/"):
            owner = self._begun.get(path)
            if owner is None and not self._is_of_now(path):
                self._begun[path] = owner = worker
            if owner is not worker:  # two hosts have saved a file of that name: keep both
                path = f"artifacts/{worker.name}/{path[len('artifacts/') :]}"
            if piece.offset == 0:  # one of an attempt before may be longer
                with contextlib.suppress(OSError):
                    os.unlink(self._run.path / path)
        try:
            if path == "metrics.jsonl":  # many hosts' lines
                with open(self._run.path / path, "ab") as file:
                    file.write(piece.data)
            else:
                put(self._run.path, Change(path, piece.offset, piece.data))
        except OSError as error:
            name = self._plan.lead.name
            self._failure = self._failure or Failure(
                f"the lead host {name} cannot keep what {worker.name} sends: {error.strerror}",
                str(error.filename or ""),
                f"free some space on {name}",
                host=name,
            )

    def _is_of_now(self, path: str) -> bool:
        """True for a file that was changed in this attempt."""
        with contextlib.suppress(OSError):
            return os.stat(self._run.path / path).st_ctime >= self._began
        return False

    def worker_of(self, name: str) -> Optional[WorkerLink]:
        """Return the worker with that name or address; None if it is not of the run.

        Two hosts may share a name or address (of a virtual network) by which the controller does
        not reach them.
        """
        for worker in self._workers:
            if name in (worker.node.address, worker.name):
                return worker
        for worker in self._workers:
            if name in worker.node.names:
                return worker
        return None

    def dismiss(self, *, comes_again: bool, interrupted: Callable[[], bool]) -> Optional[Failure]:
        """Let the workers send their last files and leave; return why a worker was given up.

        comes_again: another attempt may follow. interrupted: returns True once nobody waits for
        the files any longer.
        """
        self.send(messages.Leave(comes_again))
        began = time.monotonic()
        while (
            any(worker.live for worker in self._workers)
            and time.monotonic() < max(began, self._stored) + _LAST_FILES
        ):
            self._actions.turn()
            if interrupted():
                break  # a user who stops the run now does without the rest of its files
            sources = self.sources
            for fd in readable(sources, 0.25):
                self._receive(sources[fd])
            self._tick(time.monotonic())
        return self._failure

    def close(self) -> None:
        """End the connections that are left; report the hosts that could not be swept."""
        deadline = time.monotonic() + _LEAVING
        for worker in self._workers:
            worker.channel.drain(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.05, deadline - time.monotonic()))
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            worker.channel.close()
        unswept = {w.name for w in self._workers if w.state is WorkerState.LOST}
        began = time.monotonic()
        for name, (reaper, since, patience) in self._reapers.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                reaper.wait(max(0.0, min(began, since) + patience - time.monotonic()))
            reaper.kill()
            if reaper.wait() == 0:
                unswept.discard(name)
        for name in sorted(unswept):
            self._actions.event("unswept", host=name)
        self._rsh.close()


def _without_call(host: str, lead: str) -> Failure:
    return Failure(
        f"the launcher's connection to host {host} was ended on {lead}",
        "the process there that stands for its ssh (rank.rsh_client) was killed",
        f"find out from the log of {lead} who ended it (out of memory?); run again",
        host=lead,
        cause=HOST,
    )


def _without_daemon(host: str, number: int) -> Failure:
    """Return the failure of a run in which a daemon of the launcher was killed."""
    return Failure(
        f"the launcher's daemon on host {host} was ended by {signal_name(number)}",
        "without it the ranks there cannot be led",
        "find out from the host's log who killed it (out of memory?); run again",
        host=host,
        cause=HOST,
    )


def _by_our_clock(message: Message, clock: ClockOffset) -> Message:
    """Return the message with its times by this host's clock."""
    if isinstance(message, messages.Sample):
        return message._replace(sent=clock.here(message.sent))
    if isinstance(message, messages.RankReport):
        at = message.report.values.get("at")
        if isinstance(at, float):  # else it is a step, as in "step 12"
            return message._replace(report=message.report.extended(at=clock.here(at)))
    return message


def _allow_many_files() -> None:
    """Raise the limit of descriptors: each host takes some, and the usual 1024 is for select(2)."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
