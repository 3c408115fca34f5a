"""A worker's part of a run: `boot.py agent.remote FOLDER`, started by the lead through ssh.

The key that the lead has for this host can start nothing else (`command=` in authorized_keys).
Standard input and output are the channel to the lead. What the lead asks for is in
SSH_ORIGINAL_COMMAND: `warden`, or `reap` to end what a killed warden left behind.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from shanty.carry.agent.channel import Channel, readable
from shanty.carry.agent.daemons import Daemons
from shanty.carry.agent.identity import free_port, identity, where
from shanty.carry.agent.outside import end_remains
from shanty.carry.agent.warden import Warden
from shanty.carry.errors import ShantyError
from shanty.carry.host import authorized
from shanty.carry.host.runs import HEARD
from shanty.carry.mirror import Change, Mirror
from shanty.carry.rundir import RunDir, write_json

_PATIENCE = 20.0  # seconds for the lead to send the plan
_AHEAD = 1 << 20  # bytes that may wait in the channel before more is read from files
KEY_LIFE = 3600.0  # seconds for which a run's key is let in, from its last extension
_RENEWAL = 1200.0  # seconds between two extensions
_LAST_FILES = 60.0  # seconds for the next megabyte of the last files to reach the lead


def main(argv: List[str]) -> int:
    """Be the warden of the run whose folder on this host is `argv[0]`, or end its remains."""
    run = RunDir(Path(argv[0]))
    if os.environ.get("SSH_ORIGINAL_COMMAND", "").split()[:1] == ["reap"]:
        try:
            end_remains(run)
        finally:
            _lock_out(run)
        return 0
    if run.path.exists():  # so that a key which has served its run starts nothing any more
        print(f"shanty: run {run.id} has had its warden on this host", file=sys.stderr)
        return 1
    sink = os.dup(1)
    os.dup2(2, 1)  # nothing but messages may get into the channel
    channel = Channel(os.dup(0), sink)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    plan = _first_word(channel)
    if plan is None:
        _lock_out(run)
        return 0
    run.create()
    write_json(run.plan, plan)
    write_json(run.agents, {"warden": identity(os.getpid()), **where()})
    RemoteWarden(run, plan, channel).run()
    return 0


def _first_word(channel: Channel) -> Optional[Dict[str, Any]]:
    deadline = time.monotonic() + _PATIENCE
    while channel.open and time.monotonic() < deadline:
        readable([channel.source], 0.5)
        messages = channel.receive()
        for number, message in enumerate(messages):
            if "plan" in message:
                channel.put_back(messages[number + 1 :])  # orders may have come right behind it
                plan: Dict[str, Any] = message["plan"]
                return plan
    return None


class RemoteWarden(Warden):
    """The warden of a host on which the launcher only has daemons."""

    def __init__(self, run: RunDir, plan: Mapping[str, Any], lead: Channel) -> None:
        super().__init__(run, plan, lead)
        self._daemons: Optional[Daemons] = None
        self._mirror = Mirror(run.path)
        self._next_renewal = time.monotonic() + _RENEWAL

    @property
    def over(self) -> bool:
        """True when the lead wants nothing more of this host, or is gone."""
        return self.leaving or not self.lead.open

    def begin(self) -> None:
        """Say that we are here; the rest comes by orders."""
        (self.run_dir.path / HEARD).touch()
        self.lead.send(hello=free_port())

    def obey(self, order: Mapping[str, Any]) -> None:
        """Make ready for the ranks, or start one of the launcher's daemons."""
        if "place" in order:
            environment = self.prepare(order["place"], order["shared"])
            folder = f"{self.plan['scratch']}/work"
            self._daemons = Daemons(self.lead, {**os.environ, **environment}, folder)
        elif "daemon" in order and self._daemons is not None:
            self.follow(self._daemons.start(order["daemon"], order["command"]))

    def pump(self, fd: int) -> bool:
        """Pass on what a daemon wrote."""
        return self._daemons is not None and self._daemons.pump(fd)

    def child_ended(self, pid: int, code: int) -> None:
        """Tell the lead when it was a daemon."""
        if self._daemons is not None:
            self._daemons.ended(pid, code)

    def tick(self) -> None:
        """Send what is new in the ranks' files, as far as the line takes it; keep the key alive."""
        if self.lead.open:
            self._send_files(_AHEAD)
            with contextlib.suppress(OSError):
                heard = time.time() - (time.monotonic() - self.silence.since)
                os.utime(self.run_dir.path / HEARD, (heard, heard))
        if time.monotonic() > self._next_renewal:
            self._next_renewal = time.monotonic() + _RENEWAL
            with contextlib.suppress(OSError):
                name, _, index = self.run_dir.id.rpartition(".")
                until = time.time() + KEY_LIFE
                authorized.renew_key(authorized.keys_file(), name, int(index), until)

    def _send_files(self, ahead: int) -> None:
        changes = self._mirror.changes()
        while self.lead.open and self.lead.unsent < ahead:
            change = next(changes, None)
            if change is None:
                return
            self._send(change)

    def _send(self, change: Change) -> None:
        data = base64.b64encode(change.data).decode("ascii")
        self.lead.send(file=change.path, offset=change.offset, data=data)

    def leave(self, removed: Sequence[str]) -> None:
        """Send the rest of the files, however many; what the lead has need not stay here."""
        whole = True
        for change in chain(self._mirror.changes(), self._mirror.artifacts()):
            self._send(change)
            whole = self.lead.unsent <= _AHEAD or self.lead.drain(_LAST_FILES)
            if not whole or not self.lead.open:
                break
        _lock_out(self.run_dir)
        self.lead.send(gone=list(removed), whole=whole)
        if self._taken(time.monotonic() + _LAST_FILES) and whole:
            shutil.rmtree(self.run_dir.path, ignore_errors=True)

    def _taken(self, deadline: float) -> bool:
        """True when the lead says that it has got all."""
        while self.lead.open and time.monotonic() < deadline:
            self.lead.drain(0.1)
            readable([self.lead.source], 0.1)
            if any("bye" in message for message in self.lead.receive()):
                return True
        return False


def _lock_out(run: RunDir) -> None:
    """Take the run's key out of authorized_keys."""
    name, _, index = run.id.rpartition(".")
    with contextlib.suppress(OSError, ShantyError):
        authorized.revoke_key(authorized.keys_file(), name, int(index))
