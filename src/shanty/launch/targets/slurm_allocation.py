"""Runs on the nodes of the Slurm job in which the command is typed (`salloc`, `sbatch`).

`--on local` keeps a run to this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shanty.launch.targets.base import (
    Outline,
    Planned,
    Surroundings,
    in_workdir,
    mpi_head,
    ranks_head,
    run_folder,
    scratch_of,
)
from shanty.launch.targets.local import (
    Facts,
    LocalTarget,
    node_of_this_machine,
    survey,
    write_down,
)
from shanty.launch.targets.queued import waiting_plan
from shanty.launch.targets.slurm_login import LoginPlan, SlurmLogin
from shanty.runtime import site
from shanty.runtime.connections import step_start
from shanty.runtime.controller.queue_ending import WHY
from shanty.runtime.counted import counted
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.foreign_variables import of_allocation
from shanty.runtime.plan import Plan
from shanty.runtime.rank.srun import ALLOCATION
from shanty.runtime.resolve import layout_of
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.site import Site
from shanty.runtime.slurm import allocation, first_node, submit, tools
from shanty.runtime.slurm.queue import SlurmQueue
from shanty.runtime.slurm.sbatch_options import SIGNAL, line_of
from shanty.runtime.spec import JobSpec

_TO_SETTLE = 20.0  # seconds


def plan_in_allocation(here: Surroundings, job: JobSpec, run: RunDir) -> Planned:
    """Decide where the ranks go on the nodes of this job; UsageError where they do not fit."""
    environ = here.environ
    hosts = _hosts_of(job, environ)
    entered = None
    if job.image is not None:  # the nodes share this one's home, where it is prepared
        entered = SlurmLogin(here).entered(job, run, "localhost")
        facts = Facts(hosts[0]["cores"], entered.installation, entered.bring.python)
    else:
        facts = survey(job, here)
    if environ.get("SLURM_HET_SIZE") and line_of(job) is not None:
        raise UsageError(
            "srun uses the first component of a heterogeneous job only",
            "the run is to use all components",
            "leave out srun: shanty starts the ranks itself",
        )
    submit.check_line(job, facts.installation.flavour, environ)
    if entered is None and len(hosts) == 1 and is_here(hosts[0]["name"], environ):
        own = LocalTarget(here).plan_on(replace(facts, cores=hosts[0]["slots"]), job, run)
        if tools.are_here(environ):
            os.environ[WHY] = shlex.join(
                first_node.word_command(own.plan.lead.host_boot, run, environ)
            )
        return own
    node = node_of_this_machine(facts, job, run, scratch_of(run))
    nodes = [
        node._replace(
            number=number, name=host["name"], address=host["name"], slots=host["slots"],
            cores=host["cores"],
        )
        for number, host in enumerate(hosts)
    ]  # fmt: skip
    layout = layout_of(job, nodes)
    plan = waiting_plan(job, run, here.settings, nodes[0])
    return AllocationPlan(job, run, here, plan, hosts, layout.ranks, entered)


def _hosts_of(job: JobSpec, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """The nodes of the job that we are in; PrepareError where they cannot be known or reached."""
    number = environ.get("SLURM_JOB_ID", "")
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    several = allocation.is_in_step(environ) and tasks.isdecimal() and int(tasks) > 1
    if several and not allocation.starts_alone(environ, os.getpid()):
        raise UsageError(
            f"srun started {tasks} tasks here, and each of them would start the whole run",
            "shanty starts the ranks itself",
            "leave out srun, or write srun -n 1; --on local gives each task a run of its own",
        )
    try:
        if not number:
            raise ValueError("SLURM_JOB_ID is not set")
        if not tools.are_here(environ):
            return _only_host(job, environ)
        if allocation.is_in_step(environ) and not environ.get("SLURM_HET_SIZE"):
            environ = allocation.of_whole_job(environ, tools.job(number, environ))
        steps = allocation.step_options(tools.version(environ), tools.settings(environ))
        return allocation.nodes_of(environ, job, steps)
    except ValueError as error:
        raise PrepareError(
            f"the nodes of {f'Slurm job {number}' if number else 'this Slurm job'} are not known",
            str(error),
            "--on HOSTS names them, --on local uses this machine only",
        ) from error  # fmt: skip


def _only_host(job: JobSpec, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """The node of a job that has no other, where Slurm's commands are missing."""
    if allocation.is_in_step(environ):  # only they know the tasks of the job
        environ = {k: v for k, v in environ.items() if k != "SLURM_NTASKS"}
    hosts = allocation.nodes_of(environ, job, [])
    if len(hosts) > 1 or not is_here(hosts[0]["name"], environ):
        raise PrepareError(
            f"the nodes of Slurm job {environ['SLURM_JOB_ID']} cannot be reached from here",
            "Slurm's commands (srun, scontrol) are not on PATH, as in most containers",
            "start shanty outside of the container (--image runs the ranks in one); "
            "--on local uses this machine only",
        )
    return hosts


def is_here(node: str, environ: Mapping[str, str]) -> bool:
    """True on that node, and not on the host at which the job was only submitted."""
    named = environ.get("SLURMD_NODENAME")
    return named == node if named else os.uname().nodename.partition(".")[0] == node


@dataclass(frozen=True)
class AllocationPlan(Planned):
    """A job on the nodes of a Slurm job, the lead host first.

    `entered` has the container in which the node of an image is prepared; `steps` is what was
    started on the first node.
    """

    here: Surroundings
    plan: Plan
    hosts: list[dict[str, Any]]
    count: int | None
    entered: LoginPlan | None = None
    steps: list[subprocess.Popen[bytes]] = field(default_factory=list)
    takes_long: ClassVar[bool] = True  # nothing is held against this machine

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""
        return self.count

    def outline(self) -> Outline:
        """What would be run."""
        node = self.plan.lead
        number = self.here.environ["SLURM_JOB_ID"]
        heads = [
            mpi_head(node.installation),
            *([("image", self.job.image)] if self.job.image else []),
            *(("host", f"{host['name']}: {counted(host['slots'], 'slot')}") for host in self.hosts),
            ("job", f"{number} of Slurm's"),
            ranks_head(self.ranks, spares=self.job.spares),
            ("python", node.python),
        ]
        return Outline(heads, in_workdir(self.job, self.job.words()))

    def _submit(self, stdin: int) -> None:
        """Write the run down and start its agents on the first node."""
        del stdin
        run, plan = self.run, self.plan
        secrets = self.job.secrets
        environ = {k: v for k, v in self.here.environ.items() if k not in secrets}
        submit.need_shared(str(self.here.home), environ.get("HOME", "/"))
        if self.entered is not None:
            node = self.entered.target.prepared(self.entered)
            plan = waiting_plan(self.job, run, self.here.settings, node)
        with run_folder(run, self.job, plan.attempt.ranks):
            write_down(plan, run)
            write_json(run.path / "hosts.json", self.hosts)
            site.write(run, Site(SlurmQueue.scheme, name=environ["SLURM_JOB_ID"], within=True))
            script = run.path / first_node.SCRIPT
            script.write_text(first_node.script(run, plan.lead.host_boot, SIGNAL))
            script.chmod(0o755)
            first = self.hosts[0]
            words = ["/bin/sh", str(script)]
            if not is_here(first["name"], environ):
                words = [*step_start(environ), *first["connection"]["argv"], *words]
            looked_after = [
                *plan.lead.host_boot,
                "slurm.batch",
                str(run.path),
                first_node.STEP,
                *words,
            ]
            with run.agent_log.open("ab") as log:
                step = subprocess.Popen(
                    looked_after, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                    start_new_session=True,
                    env={**environ, ALLOCATION: json.dumps(of_allocation(environ))},
                )  # fmt: skip
        self.steps.append(step)

    def settle(self) -> None:
        """Wait for the agents: Slurm kills them if the job ends before they have cleaned up."""
        for step in self.steps:
            with contextlib.suppress(subprocess.TimeoutExpired):
                step.wait(_TO_SETTLE)
