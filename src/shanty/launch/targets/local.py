"""The machine at which the command is typed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import shanty.carry
from shanty.carry import platform
from shanty.carry.agent import sweep
from shanty.carry.errors import LostError, NotFoundError, StorageError
from shanty.carry.mpi.layout import HostSlots
from shanty.carry.rundir import (
    RunDir,
    append_line,
    read_json,
    read_lines,
    storage_errors,
    write_json,
)
from shanty.carry.spec import Failure, JobSpec, State, Status
from shanty.launch import interpreter, logout, mpis
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Chunk, Facts, Handle, Reply, Stacks, Stop
from shanty.launch.targets.plan import LAUNCHERS, Plan, make_plan, shim_script

_CHUNK = 1 << 18
_ASK_PATIENCE = 10.0  # seconds for the lead agent to answer
_NEWBORN = 10.0  # seconds in which a run's agent must have written its first word


class LocalTarget:
    """Runs on this machine, for the user whose `home` and `environ` are given."""

    scheme: ClassVar[str] = "local"

    def __init__(self, home: Path, environ: Mapping[str, str], settings: Settings) -> None:
        self.home = home
        self.environ = environ
        self.settings = settings

    def survey(self, job: JobSpec) -> Facts:
        """This machine's cores, and the MPI and Python that the job will use."""
        environ = {**self.environ, **job.env}
        cores = platform.usable_cores()
        return Facts(
            hosts=(HostSlots("localhost", cores),),
            cores=cores,
            installation=mpis.select(job.mpi, self.home, environ),
            python=interpreter.choose(job.python, Path(job.workdir), environ),
        )

    def plan(self, job: JobSpec, facts: Facts, run: RunDir) -> Plan:
        """Decide everything, without touching anything."""
        if job.oversubscribe and job.ranks and job.ranks > facts.cores:
            facts = replace(facts, hosts=(HostSlots("localhost", job.ranks),))
        return make_plan(job, facts, run, self.environ, self.settings)

    def submit(self, job: JobSpec, plan: Plan, run: RunDir, stdin: int) -> Handle:
        """Write the run down and start its lead agent, in a session of its own."""
        if not Path(job.workdir).is_dir():
            raise NotFoundError(f"there is no folder {job.workdir}", "the job is to run in it")
        run.create()
        try:
            self._write_down(job, plan, run)
            log = run.agent_log.open("ab")
        except StorageError:
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
            raise
        boot = str(Path(shanty.carry.__file__).parent / "boot.py")
        with log:
            subprocess.Popen(
                [
                    *logout.survivor_prefix(self.environ),
                    *(sys.executable, "-I", "-S", boot, "agent.start", str(run.path)),
                ],
                stdin=stdin,
                stdout=log,
                stderr=log,
                cwd=job.workdir,
                env=dict(self.environ),
                start_new_session=True,
            )
        return Handle(run)

    def _write_down(self, job: JobSpec, plan: Plan, run: RunDir) -> None:
        with storage_errors(run.path):
            write_json(run.job, job.to_json())
            run.hostfile.write_text(plan.hostfile)
            values = plan.to_json()
            values["env"] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} | {
                **values["env"]
            }
            write_json(run.plan, values)
            if plan.raw:
                for name in LAUNCHERS:
                    shim = run.bin / name
                    shim.write_text(shim_script(name, run.plan))
                    shim.chmod(0o755)
            for folder in sweep.folders(plan.scratch):
                _make_private(Path(folder))
            write_json(run.status, Status(created=time.time(), ranks=plan.layout.ranks).to_json())

    def poll(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand, as their directories say; a run without agents is LOST."""
        return {handle: self._status(handle.run) for handle in handles}

    def fetch(self, handle: Handle, path: PurePosixPath, offset: int) -> Chunk:
        """The next piece of one of the run's files."""
        try:
            with (handle.run.path / path).open("rb") as file:
                file.seek(offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            data = b""
        return Chunk(data, offset + len(data))

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Leave a request for the lead agent, wake it and wait for its answer."""
        run = handle.run
        if self._status(run).state.final:
            return Reply(isinstance(request, Stop), "the run has ended")
        ask: dict[str, Any] = {"kind": "stacks"}
        if isinstance(request, Stop):
            ask = {"kind": "stop", "grace": request.grace}
        path = run.asks / f"{time.time_ns()}-{os.getpid()}.ask"
        with storage_errors(path):
            write_json(path, ask)
        deadline = time.monotonic() + _ASK_PATIENCE
        answer = path.with_suffix(".reply")
        while time.monotonic() < deadline:
            self._wake(run)
            reply = read_json(answer)
            if reply is not None:
                with contextlib.suppress(OSError):
                    answer.unlink()
                return Reply(reply["ok"], reply.get("error", ""), reply.get("stacks", []))
            if self._status(run).state.final:
                return Reply(isinstance(request, Stop), "the run has ended")
            time.sleep(0.02)
        raise LostError(
            f"the lead agent of {run.id} does not answer",
            "it is alive, but frozen or starved",
            f"see `shanty logs --agent {run.id}`",
        )

    def _wake(self, run: RunDir) -> None:
        agents = read_json(run.agents) or {}
        if _is_alive(agents, "lead"):
            with contextlib.suppress(OSError):
                os.kill(agents["lead"]["pid"], signal.SIGUSR1)

    def _status(self, run: RunDir) -> Status:
        status = read_status(run)
        if status.state.final or self._has_agents(run, status):
            return status
        status = read_status(run)  # it may have ended while we looked at its agents
        return status if status.state.final else self._lose(run, status)

    def _has_agents(self, run: RunDir, status: Status) -> bool:
        agents = read_json(run.agents)
        if agents is None:
            newborn = time.time() < status.created + _NEWBORN
            return newborn or bool(platform.with_argument(str(run.path)))
        here = (os.uname().nodename, platform.pid_namespace())
        if (agents.get("host", here[0]), agents.get("pids", here[1])) != here:
            return True  # another host's or container's, on a shared disk: not ours to judge
        if agents.get("boot") != platform.boot_id():
            return False
        return any(_is_alive(agents, name) for name in ("lead", "warden"))

    def _lose(self, run: RunDir, status: Status) -> Status:
        """Nobody looks after the run any more: end what is left of it and say why."""
        sweep.end_all(lambda: platform.marked("SHANTY_RUN_ID", run.id))
        with contextlib.suppress(KeyError, TypeError):  # a damaged plan: nothing to go by
            sweep.sweep_after(read_json(run.plan) or {})
        failure = lost_cause(read_json(run.agents), platform.boot_id(), self.environ)
        status = replace(
            status,
            state=State.LOST,
            ended=time.time(),
            exit_code=LostError.exit_code,
            failure=failure,
        )
        with contextlib.suppress(OSError):
            write_json(run.status, status.to_json())
            append_line(
                run.events, {"time": time.time(), "event": "state", "status": status.to_json()}
            )
        return status


def _is_alive(agents: Mapping[str, Any], name: str) -> bool:
    """True when that agent is there; False for a damaged record of it."""
    agent = agents.get(name)
    if not isinstance(agent, dict) or not isinstance(agent.get("pid"), int):
        return False
    return platform.is_alive(agent["pid"], str(agent.get("born")))


def _make_private(folder: Path) -> None:
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


def lost_cause(agents: Mapping[str, Any] | None, boot: str, environ: Mapping[str, str]) -> Failure:
    """Why a run has no agents any more, as far as it can be known."""
    if agents is None:
        return Failure(
            "the run's agent never came up",
            "its first words, if any, are in logs/agent.log",
            "run again; `shanty logs --agent` shows the log",
        )
    if agents.get("boot") != boot:
        return Failure("the machine was started anew while the run was on", fix="run again")
    if logout.kills_at_logout(environ) and logout.session_is_gone(
        str(agents.get("session", "")), environ
    ):
        return Failure(
            "the run was ended at log-out",
            "systemd-logind ends the processes of a session with it (KillUserProcesses=yes)",
            "run `loginctl enable-linger`, or start it from a session that stays",
        )
    return Failure(
        "the run's agents were killed",
        "both the lead and the warden are gone and left no word",
        "run again; look for the killer in the system's log (out of memory?)",
    )


def read_status(run: RunDir) -> Status:
    """The status as written; a damaged file is made up for from the events."""
    values = read_json(run.status)
    with contextlib.suppress(ValueError, TypeError):
        if values is not None:
            return Status.from_json(values)
    for event in reversed(read_lines(run.events)):
        with contextlib.suppress(ValueError, TypeError):
            if event.get("event") == "state":
                return Status.from_json(event.get("status", {}))
    with contextlib.suppress(OSError):
        return Status(state=State.PENDING, created=run.path.stat().st_mtime)
    return Status()


def _free_port() -> int:
    """A TCP port that is free now, for frameworks that meet at MASTER_ADDR:MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
