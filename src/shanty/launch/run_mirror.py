"""Keeps a run's directory here up to date with the one on its lead host, while anyone looks.

A thread asks the lead host for changes and writes them down; everything else reads the files. When
the lead host cannot be reached, its workers are asked whether they still receive messages of the
controller. If none of them does, the controller is gone and the run has failed; if they do, only
the way from here is broken and the run goes on. Standard input goes the other way, to rank 0, for
as long as this process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.launch.transport import connect
from shanty.launch.transport.parallel import side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime import run_agents, run_status, site
from shanty.runtime.errors import LaunchError, LostError, NotFoundError, ShantyError
from shanty.runtime.heartbeat import SILENCE, STANDBY
from shanty.runtime.mirror import REPLACED, Change, may_write, put
from shanty.runtime.rpc.runs import LEAD_APPENDED
from shanty.runtime.rundir import RunDir, append_line
from shanty.runtime.site import Host, Site
from shanty.runtime.spec import HOST, Failure, State, Status

_WAIT = 1.0  # seconds for which the lead host waits for a change before it answers
_SILENCE = 5.0  # seconds beyond that after which the lead host counts as unreachable
_FRESH = 3.0  # seconds within which a worker receives a message of a working controller
# In place of an age: the worker is done and the controller said so, or it gave the controller up.
_LEFT, _GIVEN_UP = -1.0, math.inf
_COPIED = (
    *LEAD_APPENDED,
    *REPLACED,
    "status.json",
    "left.json",
    "plan.json",
)  # and what is below artifacts/
_STDIN_CHUNK = 32 << 10  # bytes; half of what a FIFO holds
_READER_FIRST = 0.1  # seconds between the first looks whether rank 0 reads
_STDIN_WAIT = 1.0  # seconds that the host waits for room
_GIVE_UP = 60.0  # seconds without any host after which it is not known how the run stands


class RunMirror:
    """The copy of one run; `start` it, then read the run's directory here.

    The first of `clients` is connected to the lead host, the others to hosts that accept the run's
    key until they are asked to revoke it. `amend` may add to the end of a run before that is
    written down.
    """

    def __init__(
        self,
        run: RunDir,
        hosts: Sequence[Host],
        clients: Sequence[RpcClient] = (),
        amend: Callable[[Status], Status] = lambda status: status,
    ) -> None:
        self._run = run
        self._hosts = tuple(hosts)
        self._client = clients[0] if clients else None
        self._amend = amend
        self._others = clients[1:]
        self._first = True
        self._last_word = time.monotonic()
        self._seen = 0.0  # when the lead host last answered, by time.time(): sleep counts; 0: never
        self._looked = threading.Event()
        self._ended = threading.Event()
        self._lost: Failure | None = None
        self.stands_by = False  # this process starts the next attempt if the lead host is lost
        self.hosts_left: tuple[Host, ...] = ()  # where that can start
        self.folder_lost = False  # the lead host does not have the run
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> RunMirror:
        """Begin to copy."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Copy no more."""
        self._ended.set()
        self._thread.join(_WAIT + _SILENCE)

    def status(self, patience: float) -> Status:
        """Return where the run stands, after up to `patience` seconds for a first answer."""
        until = time.monotonic() + patience
        self._looked.wait(patience)
        status = run_status.read_status(self._run)
        if status.state.final:  # the thread tells the lead host that nothing is needed any more
            self._thread.join(max(0.0, until - time.monotonic()))
        if status.state.final or self._lost is None:
            return status
        return replace(status, state=State.LOST, failure=self._lost, exit_code=LostError.exit_code)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put a request to the controller, over a connection of its own."""
        return ask_run(self._run, self._hosts[0], request)

    def _work(self) -> None:
        try:
            self._copy()
        except RuntimeError as error:
            if "interpreter shutdown" not in str(error):
                raise
            # Python ends, and starts no more threads to connect with.

    def _copy(self) -> None:
        while not self._ended.is_set():
            try:
                self._pull()
                self._last_word, self._lost = time.monotonic(), None
                self._seen = time.time()
            except NotFoundError as error:
                if self._is_being_submitted():
                    self._last_word = time.monotonic()
                    self._looked.set()
                    self._ended.wait(_WAIT)
                    continue
                failure = Failure(error.what, error.why, error.fix, cause=HOST)
                self.folder_lost = True
                self.conclude(failure, State.LOST)
            except (ShantyError, OSError):
                if self._client is not None:
                    self._client.close(0.0)
                    self._client = None
                self._ask_around()
            self._looked.set()
        for client in (self._client, *self._others):
            if client is not None:
                client.close(0.5)

    def _is_being_submitted(self) -> bool:
        """Return true while the hosts are prepared, before the lead host knows of the run."""
        submitter = (site.read(self._run) or Site()).submitter
        return (
            submitter is not None
            and run_agents.is_here(submitter.record())
            and run_agents.is_alive(submitter.record(), "submitter")
            and run_status.read_status(self._run).state is State.PENDING
        )

    def _pull(self) -> None:
        if self._client is None:
            (self._client,) = connect.connect(self._hosts[:1], terminal=False)
            self._first = True
        offsets = self._offsets() if self._first else {}
        ask: dict[str, Any] = {"run": self._run.id, "offsets": offsets, "first": self._first}
        ask["standby"] = self.stands_by
        answer = self._client.ask("follow-run", wait=_WAIT, patience=_WAIT + _SILENCE, **ask)
        self._first = False
        data = io.BytesIO(answer.data)
        for path, offset, size in answer.values["changes"]:
            piece = data.read(size)
            if may_write(path, _COPIED):
                self._store(path, offset, piece, answer.values["path"])
        self._release()
        if run_status.read_status(self._run).state.final:
            self._ended.set()
            with contextlib.suppress(ShantyError):
                self._client.ask("forget-run", run=self._run.id, patience=_SILENCE)
            self._client.close(0.5)

    def _release(self) -> None:
        """Close the other hosts' clients once the run is on; at its end its key goes from them."""
        state = run_status.read_status(self._run).state
        if not self._others or state in (State.PENDING, State.STARTING):
            return

        def release(client: RpcClient) -> None:
            if state.final:
                index = self._hosts.index(client.host)
                with contextlib.suppress(ShantyError):
                    client.ask("revoke", run=self._run.id, index=index, patience=_SILENCE)
            client.close(0.5)

        side_by_side(self._others, release)
        self._others = ()

    def _store(self, path: str, offset: int | None, data: bytes, there: str) -> None:
        if path != "status.json":
            put(self._run.path, Change(path, offset, data))
            return
        values = json.loads(data)
        failure = values.get("failure") or {}
        if failure.get("log"):  # the log is a file of ours by now
            failure["log"] = failure["log"].replace(there, str(self._run.path))
        status = Status.from_json(values)
        if status.state.final:
            values = self._amend(status).to_json()
        data = json.dumps(values, indent=1).encode() + b"\n"
        with self._locked():
            if not run_status.read_status(self._run).state.final:
                put(self._run.path, Change(path, offset, data))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold off the mirrors of other commands: one may know the end of the run already."""
        folder = os.open(self._run.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _offsets(self) -> dict[str, int]:
        own = {"job.json", "plan.json", self._run.site.name, "hostfile", "reserve"}
        return {
            path.relative_to(self._run.path).as_posix(): path.stat().st_size
            for path in self._run.path.rglob("*")
            if path.is_file() and not path.is_symlink() and path.name not in own
        }

    def _ask_around(self) -> None:
        """The lead host does not answer: ask its workers, then come back to it.

        A worker that has received nothing from it for SILENCE ends its ranks and is gone, so the
        run is lost. If a worker still receives something, only the way from here is broken. If it
        is done, the run has ended well while nobody here looked (this machine may have slept).
        """
        until = time.monotonic() + SILENCE
        ages = self._ages()
        while ages and not self._is_clear(ages) and time.monotonic() < until:
            self._ended.wait(0.2)
            ages = self._ages() or ages
        lead = self._hosts[0].name
        if _over(ages):
            do = "does" if len(ages) == 1 else "do"
            what = f"the lead host {lead} cannot be reached"
            why = f"{', '.join(ages)} {do} not reach it either: it is cut off, frozen or down"
            fix = "check the host and its network; run again"
            alone = min(ages.values()) == _GIVEN_UP and len(ages) == len(self._hosts) - 1
            if alone and time.time() < self._seen + STANDBY:
                self.hosts_left = self._hosts[1:]
            self.conclude(Failure(what, why, fix, host=lead, cause=HOST), State.FAILED)
        elif time.monotonic() > self._last_word + (_GIVE_UP if ages else _GIVE_UP / 4):
            why = "no host of the run answers: is the network of this machine up?"
            why = "the run may be going on there" if ages else why
            fix = f"try again: shanty logs -f {self._run.id}"
            self._lost = Failure(f"{lead} cannot be reached from here", why, fix, host=lead)
        self._ended.wait(0.5)

    def _is_clear(self, ages: Mapping[str, float]) -> bool:
        """Return true once a worker is in touch with the lead host, or none is any more.

        For a next attempt without the lead host, all of them must have given it up.
        """
        if min(ages.values()) <= _FRESH:
            return True
        return _over(ages) and not (self.stands_by and min(ages.values()) < _GIVEN_UP)

    def _ages(self) -> dict[str, float]:
        """The seconds since the last message of the controller, of each worker that answers.

        _GIVEN_UP where it has given the controller up, _LEFT where it has ended in order. Left
        out is a worker that gave it up long before the lead host last answered: the run went on.
        """
        ages: dict[str, float] = {}
        for index, outcome in enumerate(connect.attempt(self._hosts[1:], terminal=False), 1):
            if isinstance(outcome, RpcClient):
                ask: dict[str, Any] = {"run": self._run.id, "index": index}
                with contextlib.suppress(ShantyError):
                    values = outcome.ask("heartbeat-age", patience=_SILENCE, **ask).values
                    age = _GIVEN_UP if values["age"] is None else values["age"]
                    since = time.time() - self._seen
                    if age != _GIVEN_UP or (values["silent"] or 0.0) < since + SILENCE:
                        ages[outcome.host.name] = _LEFT if values["left"] else age
                outcome.close(0.5)
        return ages

    def conclude(self, failure: Failure, state: State) -> None:
        """Write that the run is over, unless its end is known already: FAILED, or LOST."""
        before = run_status.read_status(self._run)
        if not before.state.final:  # the target may know why
            failure = self._amend(replace(before, state=state, failure=failure)).failure or failure
        code = LaunchError.exit_code if state is State.FAILED else LostError.exit_code
        with self._locked():
            run_status.conclude(self._run, state, failure, code)
        with contextlib.suppress(OSError):
            append_line(self._run.events, {"time": time.time(), "event": "link-ended"})
        self._ended.set()


def _over(ages: Mapping[str, float]) -> bool:
    """True when a worker has given the controller up and none receives it: all of them will then.

    A worker that is not in the latest attempt gave it up long ago. An age alone proves nothing: a
    worker that got no CPU receives nothing, and does not give the controller up for that.
    """
    return bool(ages) and min(ages.values()) > _FRESH and max(ages.values()) == _GIVEN_UP


def ask_run(run: RunDir, lead: Host, request: dict[str, Any]) -> dict[str, Any]:
    """Put a request to the controller of a run, on its lead host; returns the reply."""
    (client,) = connect.connect([lead], terminal=False)
    try:
        answer = client.ask("ask-run", run=run.id, request=request, patience=30.0)
    finally:
        client.close(0.5)
    reply: dict[str, Any] = answer.values["reply"]
    return reply


def has_input(fd: int) -> bool:
    """True when there may be something to read: `fd` is not the null device."""
    status, null = os.fstat(fd), Path(os.devnull).stat()
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == null.st_rdev)


def forward_stdin(lead: Host, run: str, fd: int) -> None:
    """Begin to send rank 0 the content of `fd`, of which a copy is kept, once it reads."""
    source = os.dup(fd)
    threading.Thread(target=_forward, args=(lead, run, source), daemon=True).start()


def _forward(lead: Host, run: str, source: int) -> None:
    # On any failure the run says by itself how it goes on without.
    with contextlib.suppress(OSError, ShantyError), open(source, "rb", buffering=0) as file:
        (client,) = connect.connect([lead], terminal=False)
        try:
            _forward_by(client, run, file)
        finally:
            client.close()


def _forward_by(client: RpcClient, run: str, file: io.FileIO) -> None:
    reads: bool | None = file.isatty()  # nothing else reads from a terminal meanwhile
    pause = _READER_FIRST
    while not reads:
        reads = client.ask("await-reader", run=run, wait=pause).values["reads"]
        pause = min(1.2 * pause, _STDIN_WAIT)
        if reads is None:
            return
    while data := file.read(_STDIN_CHUNK):
        while data:
            answer = client.ask("forward-stdin", run=run, wait=_STDIN_WAIT, data=data)
            taken = answer.values["taken"]
            if taken is None:
                return  # rank 0 has closed it, or is gone
            data = data[taken:]
    client.ask("forward-stdin", run=run, wait=0.0)
