"""All targets by their names: a job goes where it says, a run is asked about where it went.

Other packages add theirs by an entry point of the group `shanty.targets`: its name is the scheme,
as in `--on slurm`, its object makes a `base.Target` of `base.Surroundings`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from shanty.launch.containers.options import refuse_outside
from shanty.launch.targets.base import (
    CanInterrupt,
    Planned,
    Reply,
    Surroundings,
    Target,
    lost,
    refuse_options,
)
from shanty.launch.targets.local import LocalTarget
from shanty.launch.targets.queue_jobs import refuse_this_machine
from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import JobSpec, Status

if TYPE_CHECKING:
    from shanty.launch.targets.ssh import SshTarget


LOCAL, SSH, SLURM, KUBERNETES, MACHINES = "local", "ssh", "slurm", "k8s", "machines"
_GROUP = "shanty.targets"


class Targets:
    """This machine, hosts elsewhere, and what other packages have."""

    def __init__(self, here: Surroundings) -> None:
        self.settings = here.settings
        self._here = here
        self._targets: dict[str, Target] = {LOCAL: LocalTarget(here)}

    def looking(self) -> Targets:
        """The same, which only look: a plan of theirs brings no image anywhere."""
        return Targets(replace(self._here, brings=False))

    @cached_property
    def hosts(self) -> SshTarget:
        """The target for hosts that are named; what it needs is imported only when it is."""
        from shanty.launch.targets.ssh import SshTarget

        return SshTarget(self._here)

    def named(self, scheme: str) -> Target:
        """The target of that name; NotFoundError when no package that works here has it."""
        if scheme not in self._targets:
            if scheme == SSH:
                self._targets[scheme] = self.hosts
            elif scheme == SLURM:
                from shanty.launch.targets.slurm import SlurmTarget

                self._targets[scheme] = SlurmTarget(self._here)
            elif scheme == KUBERNETES:
                from shanty.launch.targets.kubernetes import KubernetesTarget

                self._targets[scheme] = KubernetesTarget(self._here)
            elif scheme == MACHINES:
                from shanty.launch.targets.machines import MachinesTarget

                self._targets[scheme] = MachinesTarget(self._here, self.plan, self.cancel)
            else:
                self._targets[scheme] = self._installed(scheme)
        return self._targets[scheme]

    def _installed(self, scheme: str) -> Target:
        """Another package's target."""
        from importlib.metadata import entry_points

        found = entry_points(group=_GROUP, name=scheme)
        if not found:
            raise NotFoundError(
                f"there is no target {scheme}",
                "the package that has it is not installed here",
                "install it, or look at the run where it is",
            )
        entry = next(iter(found))
        try:
            target: Target = entry.load()(self._here)
        except Exception as error:  # whatever that package does wrong
            package = entry.dist.name if entry.dist else entry.value
            raise NotFoundError(
                f"the target {scheme} of the package {package} does not work here",
                f"{type(error).__name__}: {error}",
                "install it anew, in a version for this one of shanty",
            ) from error
        return target

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find out what is there for `job` and decide everything; nothing is put anywhere yet."""
        scheme = self._scheme_of(job)
        if scheme == MACHINES:
            return self.named(scheme).plan(job, run)
        if scheme == SSH and not (job.on or job.hostfile):
            from shanty.launch.targets.launcher_pod import on_workers

            job = on_workers(job, self._here.say)
        refuse_outside(job, pods=scheme == KUBERNETES)
        if scheme == LOCAL and not job.on:
            refuse_this_machine(self._here.environ)
        where = "this machine" if scheme == LOCAL else job.on or "these hosts"
        refuse_options(job, where, scheme if scheme in (SLURM, KUBERNETES) else "")
        if job.image is not None and scheme == LOCAL:
            from shanty.launch.targets.contained import plan_here

            return plan_here(job, run, self._here)
        return self.named(scheme).plan(job, run)

    def is_queued(self, job: JobSpec) -> bool:
        """True where a queue gives the hosts, so that there are none to be looked at from here."""
        return self._scheme_of(job) not in (LOCAL, SSH)

    def is_kubernetes(self, job: JobSpec) -> bool:
        """True where the job goes to a cluster of Kubernetes."""
        return self._scheme_of(job) == KUBERNETES

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
        from importlib.metadata import entry_points  # it takes time to load

        known = {LOCAL, SLURM, KUBERNETES, *entry_points(group=_GROUP).names}
        return scheme if scheme in known else SSH

    def scheme(self, run: RunDir) -> str:
        """The name of the target that the run went to."""
        site = read_json(run.site)
        if site is None:
            return SSH if run.site.exists() else LOCAL
        return str(site.get("target", SSH))

    def _of(self, run: RunDir) -> Target:
        """Where the run went."""
        return self.named(self.scheme(run))

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Asks each target once about all of its runs: runs that do not answer share one bound.

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
        """End a run: SIGTERM, and SIGKILL after `grace` seconds; one that has ended is no error."""
        return self._of(run).cancel(run, grace)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return self._of(run).stacks(run)

    def interrupt(self, run: RunDir) -> Reply:
        """Send SIGINT to the ranks, where the run's target can."""
        target = self._of(run)
        if not isinstance(target, CanInterrupt):
            return Reply(False, f"that cannot be done on {target.scheme}")
        return target.interrupt(run)
