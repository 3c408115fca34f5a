"""The machine at which the command is typed."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import ClassVar

from shanty.launch import interpreter, mpis
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Chunk, Facts, Handle, Reply, Stacks, Stop
from shanty.launch.targets.plan import LAUNCHERS, Plan, make_plan, shim_script
from shanty.runtime import platform
from shanty.runtime.agent import control
from shanty.runtime.errors import NotFoundError, StorageError
from shanty.runtime.mpi.layout import HostSlots
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.spec import JobSpec, Status

_CHUNK = 1 << 18


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
        """Decide everything, without touching anything; PrepareError when it does not fit."""
        if job.oversubscribe and job.ranks and job.ranks > facts.cores:
            facts = replace(facts, hosts=(HostSlots("localhost", job.ranks),))
        plan = make_plan(job, facts, run, self.environ, self.settings)
        if job.memory_per_rank or job.gpus_per_rank:
            from shanty.launch.doctor import this_machine

            this_machine.check_capacity(job, plan.layout.ranks or 1)
        return plan

    def submit(self, job: JobSpec, plan: Plan, run: RunDir, stdin: int) -> Handle:
        """Write the run down and start its controller, in a session of its own."""
        if not Path(job.workdir).is_dir():
            raise NotFoundError(f"there is no folder {job.workdir}", "the job is to run in it")
        run.create()
        try:
            self._write_down(job, plan, run)
            control.start_agents(run, read_json(run.plan) or {}, job.workdir, stdin)
        except StorageError:
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
            raise
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
            write_json(run.status, Status(created=time.time(), ranks=plan.layout.ranks).to_json())

    def poll(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand, as their directories say; a run without agents is LOST."""
        return {handle: control.status_of(handle.run) for handle in handles}

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
        """Leave a request for the controller, wake it and wait for its answer."""
        reply = control.ask(handle.run, request.to_json())
        return Reply(reply["ok"], reply.get("error", ""), reply.get("stacks", []))


def _free_port() -> int:
    """A TCP port that is free now, for frameworks that meet at MASTER_ADDR:MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
