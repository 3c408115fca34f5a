"""The runs whose controller is here, or that have an agent here: begin, follow, ask, forget."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from shanty.runtime import authorized_keys, run_agents, run_status, site
from shanty.runtime.cleanup import drop_commits_later
from shanty.runtime.errors import NotFoundError, ShantyError
from shanty.runtime.folder_watch import removed
from shanty.runtime.input_readers import wait_for_input
from shanty.runtime.mirror import APPENDED, REPLACED, Change, Mirror
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.queues import queue_of
from shanty.runtime.rpc import Ask, Data, Say, workspaces
from shanty.runtime.rundir import RunDir, home, read_json, storage_errors, write_files, write_json
from shanty.runtime.spec import State, Status

LEAD_APPENDED = (
    *(*APPENDED, "logs/*.log", "attempts/*/logs/*.log"),
    *("events.jsonl", "stalls.jsonl", "resources.jsonl"),
)
_KEPT = 30 * 86400.0  # seconds that the files of a run stay when no client fetches them
_YOUNG = 60.0  # seconds that a run may take to bring its agent up
_ENOUGH = 4 << 20  # bytes of one answer
_PUT_BACK = 3.0  # seconds in which a controller puts a removed folder back
_LOOK = 0.02  # seconds between two looks for something new
_STDIN = "stdin"  # the FIFO from which rank 0 reads, where it is fed
_FED = "stdin-ended"  # is there once all of it has been
_mirrors: Dict[str, _Outbox] = {}
_stdin: Dict[str, int] = {}  # the open ends of the FIFOs, by run


def _status_of(run: RunDir) -> Status:
    runs = queue_of(run)
    return run_agents.status_of(run) if runs is None else runs.describe([run])[run]


class _Outbox:
    """The changes of a run's files that the client does not have yet."""

    def __init__(self, run: RunDir, offsets: Mapping[str, int]) -> None:
        self._run = run
        plan = ("plan.json",) if queue_of(run) is not None else ()  # its hosts come late
        self._mirror = Mirror(run.path, LEAD_APPENDED, (*REPLACED, *plan), dict(offsets))
        self._status = b""
        self._has_looked = False

    def collect(self) -> List[Change]:
        """The next changes; the final status comes only after all else."""
        status = _status_of(self._run)
        changes: List[Change] = []
        size = 0
        sources = [self._mirror.changes, self._mirror.artifacts]
        for source in sources if status.state.final else sources[:1]:
            for change in source():
                changes.append(change)
                size += len(change.data)
                if size > _ENOUGH:
                    return changes
        if status.state.final and not self._has_looked:
            self._has_looked = True
            changes += _left_here(self._run)
        data = json.dumps(status.to_json()).encode()
        if data != self._status:
            self._status = data
            changes.append(Change("status.json", None, data))
        return changes


def _left_here(run: RunDir) -> List[Change]:
    """Say what ranks wrote into the workspace of this host, from where nothing is fetched."""
    plan = read_plan(run)
    if plan is None or not run.job.exists():  # damaged: the run's end is still reported
        return []
    files = workspaces.written_since(plan.lead.workdir, run.job.stat().st_mtime)
    if not files:
        return []
    left = {"host": plan.lead.name, "folder": plan.lead.workdir, "files": files}
    return [Change(run.left.name, None, json.dumps(left).encode())]


def folder_of(run: str, index: int) -> RunDir:
    """The folder of this host's part of a run."""
    return RunDir(home(os.environ) / "work" / f"{run}.{index}")


def write_down(run: RunDir, ask: Ask) -> None:
    """Write `job plan status files` of a request into the run's new folder."""
    with storage_errors(run.path):
        write_json(run.job, ask["job"])
        write_json(run.plan, ask["plan"])
        write_json(run.status, ask["status"])
        write_files(run, ask["files"])


def begin_run(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`run plan job status files stdin`: write the run down and start its controller.

    `files` are `{path: [text, mode]}`, relative to the run's folder. With `stdin` true rank 0
    reads what `forward-stdin` brings, else an empty file.
    """
    run = folder_of(ask["run"], 0)
    run.create()
    write_down(run, ask)
    if ask["stdin"]:
        os.mkfifo(run.path / _STDIN, 0o600)
        source = os.open(run.path / _STDIN, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(source, True)
        # Held open until the client has sent the end, or the client is gone with us.
        _stdin[ask["run"]] = os.open(run.path / _STDIN, os.O_WRONLY | os.O_NONBLOCK)
    else:
        source = os.open(os.devnull, os.O_RDONLY)
    try:
        run_agents.start_agents(run, Plan.from_json(ask["plan"]), os.path.expanduser("~"), source)
    finally:
        os.close(source)
    return {"path": str(run.path)}


def await_reader(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`run wait`: whether rank 0 reads its standard input; if not, `wait` seconds pass first.

    `reads` is None when nothing has it open any more.
    """
    path = folder_of(ask["run"], 0).path / _STDIN
    try:
        if ask["run"] not in _stdin:
            _stdin[ask["run"]] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        if wait_for_input(str(path)):
            return {"reads": True}
        poll = select.poll()
        poll.register(_stdin[ask["run"]], 0)
        if not poll.poll(1000 * ask["wait"]):  # an error: all other ends are closed
            return {"reads": False}
    except OSError:
        pass
    return {"reads": None}


def forward_stdin(ask: Ask, data: Data, _say: Say) -> Dict[str, Any]:
    """`run wait`: give rank 0 more of its standard input; how much of it there was room for.

    Waits up to `wait` seconds for room. No data is the end. `taken` is None when rank 0 no longer
    reads.
    """
    run = folder_of(ask["run"], 0)
    text = data.read()
    try:
        if not text:
            (run.path / _FED).touch()
            return {"taken": 0}
        if ask["run"] not in _stdin:
            _stdin[ask["run"]] = os.open(run.path / _STDIN, os.O_WRONLY | os.O_NONBLOCK)
        select.select([], [_stdin[ask["run"]]], [], float(ask["wait"]))
        return {"taken": os.write(_stdin[ask["run"]], text)}
    except BlockingIOError:
        return {"taken": 0}
    except OSError:
        return {"taken": None}


def follow_run(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`run offsets wait standby`: the changes of the run's files.

    It waits up to `wait` seconds for a change.
    `offsets` are the sizes of the files that the client has; they count in the first call only.
    `standby`: the client would start the next attempt if this host were lost.
    """
    run = folder_of(ask["run"], 0)
    patience = time.monotonic() + _PUT_BACK
    while not run.path.is_dir():
        if ask["run"] not in _mirrors:
            raise NotFoundError(f"the lead host has no run {ask['run']}")
        if time.monotonic() > patience:
            failure = removed(os.uname().nodename, str(run.path))
            raise NotFoundError(failure.what, failure.why, failure.fix)
        time.sleep(_LOOK)
    if ask.get("standby"):
        with contextlib.suppress(OSError):
            run.standby.touch()
            os.utime(run.standby, (time.monotonic(),) * 2)  # which no change of the clock affects
    if ask.get("first") or ask["run"] not in _mirrors:
        _mirrors[ask["run"]] = _Outbox(run, ask["offsets"])
    if ask["run"] in _stdin and (run.path / _FED).exists():
        os.close(_stdin.pop(ask["run"]))
    outbox = _mirrors[ask["run"]]
    deadline = time.monotonic() + float(ask["wait"])
    changes = outbox.collect()
    while not changes and time.monotonic() < deadline:
        time.sleep(_LOOK)
        changes = outbox.collect()
    return {
        "path": str(run.path),
        "changes": [[c.path, c.offset, len(c.data)] for c in changes],
        "data": b"".join(c.data for c in changes),
    }


def ask_run(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`run request`: ask the controller."""
    run, request = folder_of(ask["run"], 0), ask["request"]
    runs = queue_of(run)
    if runs is None:
        return {"reply": run_agents.ask(run, request)}
    if request["kind"] == "stop":
        return {"reply": runs.cancel(run, float(request.get("grace", 0.0)))}
    return {"reply": runs.stacks(run)}


def forget_run(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`run`: remove the files of a run that has ended; its client has them all."""
    run = folder_of(ask["run"], 0)
    if run.path.is_dir() and run_status.read_status(run).state.final:
        _mirrors.pop(ask["run"], None)
        shutil.rmtree(run.path, ignore_errors=True)
    return {}


def heartbeat_age(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`run index`: `age`, the seconds since a worker here received anything from its controller.

    None if this host has no worker of the run. `left` is true when its node agent has ended as the
    controller asked it to, or never started. `silent` are the seconds also where it has ended
    otherwise, None if they are not known.
    """
    run = folder_of(ask["run"], int(ask["index"]))
    age: Optional[float] = None
    silent: Optional[float] = None
    with contextlib.suppress(OSError):
        silent = time.time() - os.stat(run.heard).st_mtime
    if run_agents.is_alive(read_json(run.agents) or {}, "node_agent"):
        age = silent or 0.0  # it may have only just come up
    left = not run.path.is_dir()  # an agent that is done removes its folder
    return {"age": age, "silent": silent, "left": left}


def crashed() -> List[str]:
    """The runs of which something is left here for a minute, though no agent looks after them."""
    return sorted(path.name for path in _folders() if _is_crashed(RunDir(path)))


def _is_crashed(run: RunDir) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return time.time() > run.path.stat().st_mtime + _YOUNG and _is_orphaned(run)
    return False


def _folders() -> List[Path]:
    folder = home(os.environ) / "work"
    return sorted(folder.glob("*.*")) if folder.is_dir() else []


def sweep_runs(_ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """End what crashed runs left on this host, and forget runs that no client asked for."""
    swept = []
    for path in _folders():
        with contextlib.suppress(FileNotFoundError):  # its own node agent has just removed it
            if _sweep(RunDir(path)):
                swept.append(path.name)
    return {"swept": swept}


def _sweep(run: RunDir) -> bool:
    old = time.time() > run.path.stat().st_mtime + _KEPT
    orphaned = _is_orphaned(run)
    if orphaned and run.path.name.endswith(".0"):
        run_agents.status_of(run)  # makes it LOST, and sweeps
    elif orphaned:
        agent = (read_json(run.agents) or {}).get("node_agent")
        if agent and run_agents.is_frozen(run):
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent["pid"], signal.SIGKILL)
        run_agents.end_remains(run, comes_again=True)
        drop_commits_later(run.path.stem)  # the next attempt may be about to take them over
        name, _, index = run.path.name.rpartition(".")
        with contextlib.suppress(OSError, ShantyError, ValueError):
            authorized_keys.revoke_key(authorized_keys.keys_file(), name, int(index))
        run_agents.forget(run)
        return True
    agents = read_json(run.agents) or {}
    final = run_status.read_status(run).state.final
    ended = orphaned or (final and not run_agents.are_alive(agents))
    if old and ended:
        shutil.rmtree(run.path, ignore_errors=True)
    return orphaned


def _is_orphaned(run: RunDir) -> bool:
    """True when the agents of a run's part were on this host and are gone without the last word."""
    if site.exists(run.path):
        return False  # it waits in a queue, or is on its nodes
    agents = read_json(run.agents)
    if agents is None:
        return time.time() > run.path.stat().st_mtime + _YOUNG
    if not run_agents.is_here(agents):
        return False
    if run_agents.are_alive(agents):
        return not run.path.name.endswith(".0") and run_agents.is_frozen(run)
    status = run_status.read_status(run)
    ended = status.state.final and status.state is not State.LOST
    return not ended and not run_agents.has_agents_here(run)
