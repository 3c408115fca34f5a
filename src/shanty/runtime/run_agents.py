"""Controls a run from outside its agents, on the lead host: start it, ask it, find its state.

The command line uses it for runs on this machine, the RPC server for runs on its host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime import cleanup, platform
from shanty.runtime.errors import LostError, StorageError
from shanty.runtime.heartbeat import MOST, FailureDetector
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.programs import run as run_program
from shanty.runtime.run_status import conclude, read_status
from shanty.runtime.rundir import (
    RunDir,
    read_json,
    storage_errors,
    write_json,
)
from shanty.runtime.spec import HOST, Failure, State, Status

_ASK_PATIENCE = 10.0  # seconds for the controller to answer, while it can
_NEWBORN = 10.0  # seconds in which a run's agent must have written its first word
_LOGIND = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"]
_KILLS_AT_LOGOUT = ["busctl", "get-property", *_LOGIND, "KillUserProcesses"]
_SCOPE = ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--"]


def start_agents(
    run: RunDir, plan: Plan, cwd: str, stdin: int, hidden: Collection[str] = ()
) -> None:
    """Start the run's controller, in a session of its own.

    Variables that are `hidden` stay here: all that a run starts inherits the rest. The folders for
    temporary files are made before; in a run over several hosts by the node agents.
    """
    if not plan.scripted:
        make_scratch(plan)
    boot = str(Path(__file__).with_name("boot.py"))
    words = [sys.executable, "-I", "-S", boot, "agent.start"]
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    start_survivor([*words, str(run.path)], run.agent_log, cwd, environ, stdin)


class _Survivor(subprocess.Popen):  # type: ignore[type-arg]
    """A process that is meant to be still running when nobody refers to this any more."""

    def __del__(self) -> None:
        super().__del__(_warn=lambda *_, **__: None)  # type: ignore[call-arg]


def start_survivor(
    words: Sequence[str],
    log: Path,
    cwd: Optional[str],
    environ: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and its session; its output goes to `log`."""
    with log.open("ab") as file:
        return _Survivor(
            [*_survivor_prefix(os.environ), *words],
            stdin=stdin,
            stdout=file,
            stderr=file,
            cwd=cwd,
            env=dict(environ),
            start_new_session=True,
        )


def agents_record(**pids: int) -> Dict[str, Any]:
    """The content of `agents.json`: the agents' pids and births, and their host."""
    agents = {name: {"pid": pid, "born": platform.born(pid)} for name, pid in pids.items()}
    host, namespace = _here()
    return {**agents, "host": host, "pids": namespace, "boot": platform.boot_id()}


def _here() -> Tuple[str, str]:
    return os.uname().nodename, platform.pid_namespace()


def make_scratch(plan: Plan) -> None:
    """Make the folders for temporary files of a run on this machine."""
    for folder in cleanup.folders(plan.scratch):
        make_private(Path(folder))


def make_private(folder: Path) -> None:
    """Make a folder below one of this user's own, both for this user alone."""
    for attempt in (1, 2):
        try:
            if folder.parent.name.startswith("shanty-"):
                folder.parent.mkdir(mode=0o700, exist_ok=True)
                if folder.parent.stat().st_uid != os.getuid():
                    raise StorageError(
                        f"{folder.parent} belongs to someone else", fix="remove or rename it"
                    )
            folder.mkdir(mode=0o700)
            return
        except FileNotFoundError:  # a run that just ended took the empty parent with it
            if attempt == 2:
                raise


def ask(run: RunDir, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Leave a request for the controller, wake it and wait for its answer.

    A run that has ended answers `{"ok": …, "error": "the run has ended"}`; stopping it is fine.
    """
    ended = {"ok": request["kind"] == "stop", "error": "the run has ended"}
    if status_of(run).state.final:
        return ended
    path = leave(run, request)
    for pid in _stopped(run) if request["kind"] == "stop" else ():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)  # they carry it out
    silence = FailureDetector(_pid_here(run, "controller"))
    answer = path.with_suffix(".reply")
    while not silence.is_over(time.monotonic(), _ASK_PATIENCE):
        _wake(run)
        reply = read_json(answer)
        if reply is not None:
            with contextlib.suppress(OSError):
                answer.unlink()
            return reply
        if status_of(run).state.final:
            return ended
        time.sleep(0.02)
    raise LostError(
        f"the controller of {run.id} does not answer",
        "it is alive, but frozen or starved",
        f"see `shanty logs --agent {run.id}`",
    )


def leave(run: RunDir, request: Mapping[str, Any]) -> Path:
    """Leave a request for the controller and wake it; where the answer will be, as `.reply`."""
    path = run.asks / f"{time.time_ns()}-{os.getpid()}.ask"
    with storage_errors(path):
        run.asks.mkdir(exist_ok=True)  # it may have been removed
        write_json(path, request)
    _wake(run)
    return path


def _wake(run: RunDir) -> None:
    pid = _pid_here(run, "controller")
    if pid:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)


def _pid_here(run: RunDir, name: str) -> int:
    """The pid of that agent; 0 when it is not on this host, or has ended."""
    agents = read_json(run.agents) or {}
    return agents[name]["pid"] if is_here(agents) and is_alive(agents, name) else 0


def status_of(run: RunDir) -> Status:
    """The status of the run; a run whose agents have disappeared is LOST from now on."""
    status = read_status(run)
    if status.state.final:
        return status
    if _has_agents(run, status):
        stopped = _stopped(run)
        return replace(status, trouble=_trouble(stopped)) if stopped else status
    status = read_status(run)  # it may have ended while we looked at its agents
    return status if status.state.final else _lose(run)


def _stopped(run: RunDir) -> List[int]:
    """The pids of the run's agents on this host, where all of them are stopped."""
    pids = [_pid_here(run, name) for name in ("controller", "node_agent")]
    entries = [platform.process(pid) for pid in pids if pid]
    stopped = [
        entry.pid for entry in entries if entry is not None and entry.state in platform.STOPPED
    ]
    return stopped if len(stopped) == len(entries) else []


def _trouble(stopped: Sequence[int]) -> str:
    """What is wrong where no agent can report anything."""
    pids = " ".join(map(str, stopped))
    return (
        f"the run's agents on {os.uname().nodename} are stopped, as by SIGSTOP: nothing watches "
        f"the ranks. Let them go on: kill -CONT {pids}; shanty stop ends the run all the same"
    )


def _has_agents(run: RunDir, status: Status) -> bool:
    agents = read_json(run.agents)
    if agents is None:
        newborn = time.time() < status.created + _NEWBORN
        return newborn or bool(platform.with_argument(str(run.path)))
    if not is_here(agents):
        return True  # another host's or container's, on a shared disk: it cannot be seen from here
    if agents.get("boot") != platform.boot_id():
        return False
    return are_alive(agents) or _lives_in_container(run)


def has_agents_here(run: RunDir) -> bool:
    """True when one of the run's agents is on this host, and alive."""
    agents = read_json(run.agents) or {}
    return is_here(agents) and (are_alive(agents) or _lives_in_container(run))


def _lives_in_container(run: RunDir) -> bool:
    """True when the node agent is in its container, and alive.

    If the controller was killed, the engine's command that is recorded for the agent ends before
    it: the reader of the command's output is gone.
    """
    found = platform.with_argument(str(run.path))
    return any("agent.container_lead" in platform.command(entry.pid) for entry in found)


def are_alive(agents: Mapping[str, Any]) -> bool:
    """True when one of the agents is there."""
    return any(is_alive(agents, name) for name in ("controller", "node_agent"))


def is_here(agents: Mapping[str, Any]) -> bool:
    """True when the agents that wrote this record run, or ran, where we do."""
    here = _here()
    return (agents.get("host", here[0]), agents.get("pids", here[1])) == here


def is_alive(agents: Mapping[str, Any], name: str) -> bool:
    """True when that agent is there; False for a damaged record of it."""
    agent = agents.get(name)
    if not isinstance(agent, dict) or not isinstance(agent.get("pid"), int):
        return False
    return platform.is_alive(agent["pid"], str(agent.get("born")))


def _lose(run: RunDir) -> Status:
    """Nobody looks after the run any more: end what is left of it and say why."""
    end_remains(run)
    failure = lost_cause(read_json(run.agents), platform.boot_id(), str(run.path))
    return conclude(run, State.LOST, failure, LostError.exit_code)


def is_frozen(run: RunDir) -> bool:
    """True when the node agent of a worker is stopped, and its controller has long given it up."""
    agent = (read_json(run.agents) or {}).get("node_agent")
    pid = agent.get("pid") if isinstance(agent, dict) else None
    entry = platform.process(pid) if isinstance(pid, int) else None
    if entry is None or entry.state not in platform.STOPPED:
        return False
    with contextlib.suppress(OSError):
        return time.time() > run.heard.stat().st_mtime + 2 * MOST
    return False


def forget(run: RunDir) -> None:
    """Remove a worker's files of a run that is over; artifacts stay, since none were sent."""
    if not any(path.is_file() for path in run.artifacts.rglob("*")):
        shutil.rmtree(run.path, ignore_errors=True)


def end_remains(run: RunDir, *, comes_again: bool = False) -> None:
    """End what is left of a run, or of an attempt, without agents, and sweep up after it."""
    plan = read_plan(run)
    if plan is not None:
        cleanup.end_container(plan)
    cleanup.end_all(lambda: platform.marked("SHANTY_RUN_ID", plan.id if plan else run.id))
    if not comes_again:
        cleanup.drop_commits(plan.id if plan else run.path.stem)
    if plan is not None:
        cleanup.sweep_after(plan)


def lost_cause(agents: Mapping[str, Any] | None, boot: str, folder: str = "/") -> Failure:
    """The reason why a run has no agents any more, as far as it can be known.

    `boot` is the machine's boot id now, and `folder` the run's.
    """
    if agents is None:
        return Failure(
            "the run's agent never came up",
            "its first messages, if any, are in logs/agent.log",
            "run again; `shanty logs --agent` shows the log",
        )
    if agents.get("boot") != boot:
        what = "the machine was restarted during the run"
        return Failure(what, fix="run again", cause=HOST)
    if os.path.isdir(folder) and not os.access(folder, os.W_OK):
        return Failure(
            "the run's folder can no longer be written",
            f"{folder} is read-only, or belongs to someone else; the agents keep the run's files "
            "there, and have ended",
            "find out what changed it (a damaged disk is mounted read-only: see dmesg); run again",
            cause=HOST,
        )
    return Failure(
        "the run's agents were killed",
        "both the controller and the node agent are gone and left no message",
        "run again; see in the system log what killed them: a lack of memory? systemd-logind?",
        cause=HOST,
    )


def _kills_at_logout(environ: Mapping[str, str]) -> bool:
    """True when systemd-logind ends all processes of a session with it."""
    if not environ.get("XDG_SESSION_ID"):
        return False
    answer = run_program(_KILLS_AT_LOGOUT, 2.0, environ)
    return answer is not None and answer.stdout.strip() == "b true"


def _survivor_prefix(environ: Mapping[str, str]) -> List[str]:
    """The words before a command that must outlive the session; none where all do."""
    if not _kills_at_logout(environ) or not Path("/run/systemd/system").is_dir():
        return []
    return _SCOPE if shutil.which(_SCOPE[0], path=environ.get("PATH")) else []
