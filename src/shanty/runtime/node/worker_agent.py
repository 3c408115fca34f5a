"""The node agent of a worker: `boot.py agent.worker_agent FOLDER`, started by the controller.

The controller's key for this host can start nothing else (`command=` in authorized_keys).
Standard input and output are the channel to the controller. The last words of the command (by ssh
those of SSH_ORIGINAL_COMMAND) are the folder, and a request of `connections`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import sys
import time
from itertools import chain
from pathlib import Path
from typing import List, Optional, Sequence

from shanty.runtime import addresses, authorized_keys, foreign_variables, messages, platform
from shanty.runtime.channel import Channel, readable
from shanty.runtime.connections import REAP, RESET
from shanty.runtime.errors import ShantyError
from shanty.runtime.folder_watch import RunFolder
from shanty.runtime.heartbeat import ELASTIC_LEASE
from shanty.runtime.mirror import Change, Mirror
from shanty.runtime.node.launcher_daemons import Daemons
from shanty.runtime.node.node_agent import NodeAgent
from shanty.runtime.plan import Plan
from shanty.runtime.run_agents import agents_record, end_remains, forget, is_alive, is_here
from shanty.runtime.rundir import RunDir, read_json, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.channel import Received

_PATIENCE = 20.0  # seconds for the controller to send the plan
_AHEAD = 1 << 20  # bytes that may wait in the channel before more is read from files
RECORD = "SHANTY_AGENTS_RECORD"  # the variable with what `agents.json` has to say in a container
KEY_LIFE = 3600.0  # seconds for which a run's key is accepted, from its last extension
_RENEWAL = 1200.0  # seconds between two extensions
_LAST_FILES = 60.0  # seconds for the next megabyte of the last files to reach the controller


def main(argv: List[str]) -> int:
    """Be the node agent of the run whose folder on this host is `argv[0]`, or end its remains."""
    asked = shlex.split(os.environ.get("SSH_ORIGINAL_COMMAND", shlex.join(argv)))
    request = asked[-1] if asked else ""
    run = RunDir(own_folder(Path(argv[0]), asked))
    if request in (REAP, RESET):
        agents = read_json(run.agents) or {}
        if is_here(agents) and is_alive(agents, "node_agent"):  # frozen, or not through yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(agents["node_agent"]["pid"], signal.SIGKILL)
        try:
            end_remains(run, comes_again=request == RESET)
        finally:
            if request == REAP:
                _lock_out(run)
                forget(run)
            else:  # logs and artifacts that were not sent stay for the next attempt to send
                for path in (run.agents, run.plan, run.metrics):
                    path.unlink(missing_ok=True)
        return 0
    if run.agents.exists():  # so that a key which has served its run starts nothing any more
        print(f"shanty: run {run.id} has had its node agent on this host", file=sys.stderr)
        return 1
    platform.continue_host()
    sink = os.dup(1)
    os.dup2(2, 1)  # nothing but messages may get into the channel
    channel = Channel(os.dup(0), sink)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    plan = _first_word(channel)
    if plan is None:
        _lock_out(run)
        return 0
    run = RunDir(run.path, plan.attempt.number)
    if run.path.exists():
        run.create_attempt()
    else:
        run.create()
    write_json(run.plan, plan.to_json())
    of_host = os.environ.pop(RECORD, "")  # in a container
    record = json.loads(of_host) if of_host else agents_record(node_agent=os.getpid())
    write_json(run.agents, record)
    WorkerAgent(run, plan, channel).run()
    return 0


def own_folder(given: Path, asked: Sequence[str]) -> Path:
    """The run's folder for this host.

    Where hosts have one home, its authorized_keys has the run's key once for each of them, and
    sshd takes the first line: `given` may be the folder of another host, not of another run.
    """
    folder = Path(asked[-2]) if len(asked) > 1 else given
    same_run = (folder.parent, folder.stem) == (given.parent, given.stem)
    return folder if same_run and folder.suffix[1:].isdecimal() else given


def _first_word(channel: Channel) -> Optional[Plan]:
    deadline = time.monotonic() + _PATIENCE
    while channel.open and time.monotonic() < deadline:
        readable([channel.source], 0.5)
        received = channel.receive()
        for number, message in enumerate(received):
            if isinstance(message, messages.WorkerPlan):
                channel.put_back(received[number + 1 :])  # orders may have come right behind it
                return Plan.from_json(message.plan)
    return None


class WorkerAgent(NodeAgent):
    """The node agent of a host on which the launcher only has daemons."""

    def __init__(self, run: RunDir, plan: Plan, controller: Channel) -> None:
        super().__init__(run, plan, controller)
        self._daemons: Optional[Daemons] = None
        self._mirror = Mirror(run.path)
        self._folder = RunFolder(run)
        self._next_renewal = time.monotonic() + _RENEWAL
        self._lease = math.inf  # until when the ranks of an elastic run may work

    @property
    def over(self) -> bool:
        """True when the controller has no more orders for this host, or has gone."""
        return self.leaving or not self.controller.open

    def begin(self) -> None:
        """Report to the controller; the rest comes by orders."""
        self.run_dir.heard.touch()
        ports = addresses.ports_of_host(self.plan.attempt, self.plan.lead)
        self.controller.send(messages.Hello(tuple(ports)))

    def obey(self, order: Received) -> None:
        """Make ready for the ranks, or start a daemon of the launcher."""
        if isinstance(order, messages.Prepare):
            self.prepare(order.variables)
            folder = f"{self.plan.scratch}/work"
            environ = {**foreign_variables.for_launcher(os.environ), **self.environment}
            self._daemons = Daemons(self.controller.send, environ, folder)
        elif isinstance(order, messages.StartDaemon) and self._daemons is not None:
            self._daemons.start(order.number, order.command)
            self.follow(self._daemons.output)
        elif isinstance(order, messages.Heard):
            self._lease = order.sent + ELASTIC_LEASE

    def child_ended(self, pid: int, code: int) -> None:
        """Report the end of a daemon to the controller."""
        if self._daemons is not None:
            self._daemons.ended(pid, code)

    def tick(self) -> None:
        """Send new parts of files, as far as the connection takes them; renew the run's key.

        In an elastic run, ranks stop where the controller may have given up this host. What it said
        before may come later, so the time counts at which this host sent what arrived there.
        """
        if self.controller.open:
            self._send_files(_AHEAD)
            with contextlib.suppress(OSError):
                last = time.time() - (time.monotonic() - self.silence.since)
                os.utime(self.run_dir.heard, (last, last))
        if self.words is not None:
            self.words.pause(self._pids, pause=time.monotonic() > self._lease)
        if time.monotonic() > self._next_renewal:
            self._next_renewal = time.monotonic() + _RENEWAL
            with contextlib.suppress(OSError):
                name, _, index = self.run_dir.id.rpartition(".")
                until = time.time() + KEY_LIFE
                authorized_keys.renew_key(authorized_keys.keys_file(), name, int(index), until)

    def _send_files(self, ahead: int) -> None:
        changes = self._mirror.changes()
        while self.controller.open and self.controller.unsent < ahead:
            change = next(changes, None)
            if change is None:
                return
            self._send(change)

    def _send(self, change: Change) -> None:
        self.controller.send(messages.FilePiece(change.path, change.offset, change.data))

    def leave(self, removed: Sequence[str]) -> None:
        """Send the rest of the files, and remove them here once the controller has them."""
        whole, lost = True, self._folder.is_lost
        for change in chain(self._mirror.changes(), self._mirror.artifacts()):
            self._send(change)
            whole = self.controller.unsent <= _AHEAD or self.controller.drain(_LAST_FILES)
            if not whole or not self.controller.open:
                break
        if not self.comes_again:
            _lock_out(self.run_dir)
        self.controller.send(messages.Gone(tuple(removed), whole, lost))
        if self._taken(time.monotonic() + _LAST_FILES) and whole:
            kept = self.fork_server is not None and self.fork_server.kept  # its socket is there
            folder = self.run_dir.artifacts if kept else self.run_dir.path
            shutil.rmtree(folder, ignore_errors=True)

    def _taken(self, deadline: float) -> bool:
        """True when the controller confirms that it has all files."""
        while self.controller.open and time.monotonic() < deadline:
            self.controller.drain(0.1)
            readable([self.controller.source], 0.1)
            if any(isinstance(message, messages.Bye) for message in self.controller.receive()):
                return True
        return False


def _lock_out(run: RunDir) -> None:
    """Take the run's key out of authorized_keys."""
    name, _, index = run.id.rpartition(".")
    with contextlib.suppress(OSError, ShantyError):
        authorized_keys.revoke_key(authorized_keys.keys_file(), name, int(index))
