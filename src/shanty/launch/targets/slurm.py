"""Slurm: `shanty run --on slurm`, on a login node, from elsewhere, and inside of an allocation.

    --on slurm               hands the job to Slurm here
    --on slurm:USER@LOGIN    does so on that login node, over ssh (`slurm_login`)
    --on slurm:SITE          a site of config.toml: a login node, and options for it
    nothing, in a job        the nodes of the job that we are in (`slurm_allocation`)

What is asked of Slurm and read from it is in `runtime/slurm`.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from shanty.launch.options.known import refuse_foreign_options
from shanty.launch.targets.base import (
    Outline,
    Planned,
    Reply,
    Surroundings,
    scratch_of,
)
from shanty.launch.targets.local import node_of_this_machine, survey
from shanty.launch.targets.queued import QueuedPlan, QueuedTarget, waiting_plan
from shanty.runtime import site
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.rundir import RUN_DIR, RunDir
from shanty.runtime.site import Site
from shanty.runtime.slurm import submit
from shanty.runtime.slurm.queue import SlurmQueue
from shanty.runtime.slurm.sbatch_options import Request
from shanty.runtime.spec import JobSpec, Script, Status

if TYPE_CHECKING:
    from shanty.launch.targets.slurm_login import SlurmLogin

SCHEME = "slurm"
# Each of them is a sign of a job; users may set others on a login node (SLURM_NTASKS, SLURM_CONF).
_OF_JOBS = (
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_ID",
    "SLURM_HET_SIZE", "SLURMD_NODENAME",
)  # fmt: skip
_COMPILE = (
    "import ast,sys;list(sys.version_info[:2])<[int(n) for n in sys.argv[2].split('.')[:2]]"
    " or ast.parse(open(sys.argv[1],'rb').read(),sys.argv[1])"
)


def is_inside(environ: Mapping[str, str]) -> bool:
    """True in a job of Slurm, but not in a rank or the command line of a run."""
    return RUN_DIR not in environ and any(environ.get(name) for name in _OF_JOBS)


class _Sbatch(SlurmQueue):
    """The queue, into which `sbatch` puts runs."""

    def enqueue(self, run: RunDir, job: JobSpec, start: Sequence[str]) -> str:
        """Ask for nodes; the batch script starts the agents, and looks after their end."""
        del start
        plan = read_plan(run)
        assert plan is not None  # it has just been written down
        return submit.submit(run, plan, job, self.environ)


@dataclass(frozen=True)
class SlurmPlan(QueuedPlan):
    """A job before it has nodes: what is asked of Slurm."""

    target: SlurmTarget
    request: Request
    takes_long: ClassVar[bool] = True  # nothing is held against this machine

    def outline(self) -> Outline:
        """What is asked for."""
        heads, script = super().outline()
        return Outline([*heads, ("sbatch", shlex.join(self.request.words()))], script)

    def visible(self) -> Plan:
        """The plan with paths that the nodes see; what they would not see is copied."""
        here, node = self.target.here, self.plan.lead
        home = here.environ.get("HOME", "/")
        needed = [node.workdir, node.python, node.agent_python, node.package, node.mpi["prefix"]]
        hidden = submit.unseen(needed, home)
        if not hidden:
            return self.plan
        here.say(f"the nodes probably do not see {', '.join(hidden)}: a copy goes to {home}")
        node = self.target.login.brought(self.job, self.run, node)
        return self.plan._replace(attempt=self.plan.attempt._replace(nodes=(node,)))


class SlurmTarget(QueuedTarget):
    """Runs on the nodes that Slurm gives."""

    scheme: ClassVar[str] = SCHEME

    def __init__(self, here: Surroundings) -> None:
        super().__init__(here, _Sbatch(here.environ))

    @cached_property
    def login(self) -> SlurmLogin:
        """Runs by a login node over ssh; loaded only where they are."""
        from shanty.launch.targets.slurm_login import SlurmLogin

        return SlurmLogin(self.here)

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find MPI and Python, and check what the job asks of the cluster."""
        if job.master_image:
            raise UsageError(
                "--master-image is not for Slurm",
                "all nodes of a job start containers of one image",
                "leave it out: every node uses --image",
            )
        if not job.on:
            from shanty.launch.targets.slurm_allocation import plan_in_allocation

            refuse_foreign_options(job, "the nodes of this Slurm job")
            return plan_in_allocation(self.here, job, run)
        job, login = site_of(job, self.here.settings.targets.get(SCHEME, {}))
        if job.image is None:
            facts = survey(job, self.here)
            check_script(job, facts.python)
        if login or job.image is not None:  # containers are prepared on the login node
            planned = self.login.plan(job, run, login or "localhost")
            for inside in planned.insides:
                if not inside.bare:
                    check_script(job, planned.bring.python, inside.client.version)
            return planned
        request = submit.check(job, facts.installation.flavour, self.here.environ)
        home = self.here.environ.get("HOME", "/")
        submit.need_shared(str(self.here.home), home)
        node = node_of_this_machine(facts, job, run, scratch_of(run))
        plan = waiting_plan(job, run, self.here.settings, node)
        return SlurmPlan(job, run, self.queue, plan, self, request)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand; those of this cluster by one question to Slurm."""
        away = {run for run in runs if is_elsewhere(run)}
        found = dict(super().describe([run for run in runs if run not in away]))
        found.update(self.login.hosts.describe(away) if away else {})
        return {run: found[run] for run in runs}

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, with SIGKILL after `grace` seconds; a waiting run leaves the queue."""
        if is_elsewhere(run):
            return self.login.hosts.cancel(run, grace)
        return super().cancel(run, grace)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        if is_elsewhere(run):
            return self.login.hosts.stacks(run)
        return super().stacks(run)

    def signal(self, run: RunDir, number: int) -> Reply:
        """Send a signal to every rank that catches it."""
        if is_elsewhere(run):
            return self.login.hosts.signal(run, number)
        return super().signal(run, number)


def is_elsewhere(run: RunDir) -> bool:
    """True for a run that a login node looks after."""
    return (site.read(run) or Site()).names_hosts


def site_of(job: JobSpec, sites: Mapping[str, Any]) -> tuple[JobSpec, str]:
    """The job with the defaults of its site, and the login node that `--on slurm:…` names.

    `sites` is the table [slurm] of config.toml: options for all, and a table for each site.
    """
    place = (job.on or "").partition(":")[2]
    defaults = {key: value for key, value in sites.items() if not isinstance(value, dict)}
    own = sites.get(place)
    if isinstance(own, dict):
        defaults.update(own)
        place = str(defaults.pop("login", ""))
    return job.defaulting(defaults), place


def check_script(job: JobSpec, python: str, newest: str = "0.0") -> None:
    """Raise UsageError for a script with an error in its syntax, by the interpreter `python`.

    An interpreter older than `newest`, the version of the ranks, cannot tell and is not asked.
    """
    if not isinstance(job.command, Script):
        return
    path = Path(job.workdir, job.command.path)
    if path.is_dir():
        path = path / "__main__.py"
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", _COMPILE, str(path), newest],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PrepareError(f"{python} cannot be run", str(error), "see --python") from error
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0 and lines and lines[-1].partition(":")[0].endswith("Error"):
        where = next((line for line in reversed(lines) if line.startswith("File ")), "")
        where = where.rpartition("line ")[2]
        raise UsageError(
            f"{job.command.path} has an error in its syntax" + (f", line {where}" if where else ""),
            lines[-1],
            "correct it: it would be found only after the job has waited for its nodes",
        )
