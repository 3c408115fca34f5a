"""All targets by their names: a job goes where it says, a run is asked about where it went.

What each of them declares, and how other packages add theirs, is in `launch.options.known`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from shanty.launch.containers.options import refuse_outside
from shanty.launch.options import known
from shanty.launch.options.declared import Declared
from shanty.launch.targets.base import (
    CanSignal,
    Planned,
    Reply,
    Surroundings,
    Target,
    lost,
)
from shanty.launch.targets.local import LocalTarget
from shanty.launch.targets.queue_jobs import refuse_this_machine
from shanty.runtime import site
from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Status

LOCAL, SSH, SLURM, KUBERNETES, MACHINES = "local", "ssh", "slurm", "k8s", "machines"


def _ssh(here: Surroundings, _all: Targets) -> Target:
    from shanty.launch.targets.ssh import SshTarget

    return SshTarget(here)


def _slurm(here: Surroundings, _all: Targets) -> Target:
    from shanty.launch.targets.slurm import SlurmTarget

    return SlurmTarget(here)


def _kubernetes(here: Surroundings, _all: Targets) -> Target:
    from shanty.launch.targets.kubernetes import KubernetesTarget

    return KubernetesTarget(here)


def _machines(here: Surroundings, targets: Targets) -> Target:
    from shanty.launch.targets.machines import MachinesTarget

    return MachinesTarget(here, targets.plan, targets.cancel)


# How each is made. What it needs is imported only then.
_MAKE: dict[str, Callable[[Surroundings, Targets], Target]] = {
    LOCAL: lambda here, _all: LocalTarget(here),
    SSH: _ssh,
    SLURM: _slurm,
    KUBERNETES: _kubernetes,
    MACHINES: _machines,
}


class Targets:
    """This machine, hosts elsewhere, and what other packages have."""

    def __init__(self, here: Surroundings) -> None:
        self.settings = here.settings
        self._here = here
        self._targets: dict[str, Target] = {}

    def looking(self) -> Targets:
        """The same for a plan that is only shown: it brings no image anywhere."""
        return Targets(self._here._replace(brings=False))

    def named(self, scheme: str) -> Target:
        """The target of that name; NotFoundError when no package that works here has it."""
        if scheme not in self._targets:
            make = _MAKE.get(scheme)
            self._targets[scheme] = make(self._here, self) if make else self._installed(scheme)
        return self._targets[scheme]

    def _installed(self, scheme: str) -> Target:
        """Another package's target."""
        found = known.declared(scheme)
        if found is None or found.make is None:
            raise NotFoundError(
                f"target {scheme} not found",
                "the package that has it is not installed here",
                "install it, or look at the run where it is",
            )
        target: Target = found.make(self._here)
        return target

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find out what is there for `job` and decide everything; nothing is put anywhere yet."""
        own = self.declared(job)
        if own.scheme == MACHINES:
            return self.named(MACHINES).plan(job, run)
        if own.scheme == SSH and not (job.on or job.hostfile):
            from shanty.launch.targets.launcher_pod import on_workers

            job = on_workers(job, self._here.say)
        refuse_outside(job, pods=own.needs_image)
        if own.scheme == LOCAL and not job.on:
            refuse_this_machine(self._here.environ)
        where = "this machine" if own.scheme == LOCAL else job.on or "these hosts"
        known.refuse_foreign_options(job, where, own)
        if job.image is not None and own.scheme == LOCAL:
            from shanty.launch.targets.contained import plan_here

            return plan_here(job, run, self._here)
        return self.named(own.scheme).plan(job, run)

    def declared(self, job: JobSpec) -> Declared:
        """Return what the target of a job declares."""
        scheme = self._scheme_of(job)
        return known.declared(scheme) or Declared(scheme, scheme)

    def of(self, job: JobSpec) -> Target:
        """Return the target that a job goes to."""
        return self.named(self._scheme_of(job))

    def _scheme_of(self, job: JobSpec) -> str:
        """Which target a job goes to: `--on` has its name first, as in `slurm` or `k8s:CONTEXT`.

        A group of hosts of that name comes before it.
        """
        if job.machines and not job.on:
            return MACHINES
        if not job.on:
            if any(name.startswith("SLURM") for name in self._here.environ) and not job.hostfile:
                from shanty.launch.targets.slurm import is_inside

                if is_inside(self._here.environ):
                    return SLURM
            if "K_MPI_JOB_ROLE" in self._here.environ and not job.hostfile:
                from shanty.launch.targets import launcher_pod

                if launcher_pod.is_inside(self._here.environ):
                    return SSH
            return SSH if job.hostfile else LOCAL
        scheme = job.on.partition(":")[0]
        if not scheme.isidentifier() or (self._here.home / "hosts" / f"{scheme}.json").exists():
            return SSH
        if scheme in (LOCAL, SLURM, KUBERNETES):
            return scheme
        return scheme if scheme in {each.scheme for each in known.external()} else SSH

    def scheme(self, run: RunDir) -> str:
        """The name of the target that the run went to."""
        where = site.read(run)
        return LOCAL if where is None else where.target

    def _of(self, run: RunDir) -> Target:
        """Where the run went."""
        return self.named(self.scheme(run))

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Ask each target once for all of its runs, which share one time limit.

        A run whose target is not known any more is LOST, with the cause; that is not written down.
        """
        found: dict[RunDir, Status] = {}
        groups: dict[Target, list[RunDir]] = {}
        for run in runs:
            try:
                groups.setdefault(self._of(run), []).append(run)
            except NotFoundError as error:
                found[run] = lost(run, error)
        for target, its in groups.items():
            found.update(target.describe(its))
        return {run: found[run] for run in runs}

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End a run that is on: SIGTERM, and SIGKILL after `grace` seconds."""
        return self._of(run).cancel(run, grace)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return self._of(run).stacks(run)

    def signal(self, run: RunDir, number: int) -> Reply:
        """Send a signal to the ranks that catch it, where the run's target can."""
        target = self._of(run)
        if not isinstance(target, CanSignal):
            return Reply(False, f"that cannot be done on {target.scheme}")
        return target.signal(run, number)
