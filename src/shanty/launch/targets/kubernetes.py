"""Kubernetes: `shanty run --on k8s[:CONTEXT[/NAMESPACE]] --image IMAGE`.

The pods of a run are hosts that it gets later. A process on this machine, the watcher
(`kubernetes_watcher`), makes the pods, starts the run in them, copies its files here and deletes
the pods at the end. So the state of a run is in its directory, and nobody asks the cluster for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from shanty.launch import interpreter, mpis
from shanty.launch.containers.options import IMAGE_MPI
from shanty.launch.kubernetes import objects
from shanty.launch.kubernetes.cluster import Cluster
from shanty.launch.kubernetes.options import KubernetesOptions, is_kept
from shanty.launch.provision.containers import refuse_system
from shanty.launch.targets.base import Outline, Planned, Reply, Surroundings, run_folder
from shanty.launch.targets.elastic_support import KUBERNETES, Support
from shanty.launch.targets.kubernetes_site import ClusterSite
from shanty.runtime import run_agents, run_status, site
from shanty.runtime.errors import LostError, NotFoundError, PrepareError, ShantyError, UsageError
from shanty.runtime.lines import horovodrun
from shanty.runtime.mpi import parser
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.resolve import check_elastic
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.site import Site
from shanty.runtime.spec import Command, Failure, JobSpec, Raw, State, Status

if TYPE_CHECKING:
    from shanty.launch.doctor.check import Report

SCHEME = "k8s"
_LOST = 600.0  # seconds without an answer after which it is not known how a run stands
_STARTING = 10.0  # seconds for the watcher to be there
_STOPPING = 20.0  # seconds for the watcher to give up what it is starting
_NOT_FOR_PODS = {  # fields of JobSpec, and what to do instead
    "runtime": "the cluster's nodes have one",
    "gpus": "--gpus-per-rank asks for some",
    "master_image": "all pods of a run are of one image",
    "registry_user": "--pull-secret names a Secret with the login",
    "registry_password": "--pull-secret names a Secret with the login",
    "hostfile": "the cluster gives the hosts",
}


@dataclass(frozen=True)
class KubernetesPlan(Planned):
    """A job before it has pods: the Job that will ask for them."""

    cluster: ClusterSite
    manifests: tuple[dict[str, Any], ...]
    takes_long: ClassVar[bool] = True  # nothing is held against this machine
    elastic: ClassVar[Support] = KUBERNETES

    @property
    def raw(self) -> bool:
        """True also where an operator's pod starts the launcher."""
        return super().raw or bool(KubernetesOptions.of(self.job).operator)

    def outline(self) -> Outline:
        """The objects that would be made."""
        pods = objects.pods_of(self.job)
        heads = [
            ("to", self.cluster.place),
            ("ranks", f"{self.ranks} in {pods} pod{'s' if pods > 1 else ''}"),
            ("command", shlex.join(self.job.words())),
        ]
        return Outline(heads, [self.render_as("yaml")])

    def render_as(self, form: str) -> str:
        """The objects that would be made, as YAML or JSON."""
        if form == "json":
            return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(self.manifests)})
        import yaml

        plain = json.loads(json.dumps(self.manifests))  # without references to what comes twice
        return str(yaml.safe_dump_all(plain, sort_keys=False)).rstrip()

    def _submit(self, stdin: int) -> None:
        """Write the run down and have it watched; its ranks read no standard input."""
        from shanty.launch.targets.kubernetes_watcher import is_watched

        del stdin
        run = self.run
        with run_folder(run, self.job, self.ranks, self.cluster.into(Site(SCHEME))):
            try:
                watch(run)
            except BaseException:  # Ctrl-C too
                if is_watched(run):
                    _give_up(run)
                raise


class KubernetesTarget:
    """Runs in the pods of a cluster."""

    scheme: ClassVar[str] = SCHEME

    def __init__(self, here: Surroundings) -> None:
        self.here = here

    def plan(self, job: JobSpec, run: RunDir) -> KubernetesPlan:
        """Check what the job needs here, and that the cluster accepts it; makes nothing."""
        for name, instead in _NOT_FOR_PODS.items():
            if getattr(job, name):
                raise UsageError(f"--{name.replace('_', '-')} is not for Kubernetes", instead)
        if job.image is None:
            raise UsageError(
                "a run on Kubernetes needs --image IMAGE",
                "its pods run that image",
                "any image with a Python will do, such as python:3.12-slim",
            )
        wrong = [source for source, _, _ in job.mounts if not source.startswith("pvc:")]
        if wrong:
            raise UsageError(
                f"--mount {wrong[0]} is a folder, and pods have none of this machine's",
                fix="mount a claim: --mount pvc:NAME:/data; the workspace comes by itself",
            )
        if job.spares:
            raise UsageError(
                "--spares does not work on Kubernetes",
                "a run has pods for its ranks only",
                "leave it out; --elastic works there without spares",
            )
        if job.ranks is not None and not isinstance(job.command, Raw):
            pods, slots = objects.pods_of(job), objects.slots_of(job)
            if not pods <= job.ranks <= pods * slots:
                raise UsageError(
                    f"{job.ranks} ranks do not fit {pods} pods with room for {slots} each",
                    fix="check -n, --nodes and --ranks-per-host",
                )
        own = KubernetesOptions.of(job)
        if own.schedule_timeout <= 0:
            raise UsageError("--schedule-timeout leaves pods no time to start", fix="write 5m")
        if job.ranks is None:
            named = ranks_of(job.command) if job.nodes is None else None
            job = replace(job, ranks=named or (job.nodes or 1) * (job.ranks_per_host or 1))
        environ = {**self.here.environ, **job.env}
        flavour = "openmpi5"
        if job.mpi != IMAGE_MPI:
            installation = mpis.select(job.mpi, self.here.home, environ)
            flavour = installation.flavour
            if not own.operator:  # whose image has to have one
                refuse_system(installation)
        if job.elastic is not None:
            check_elastic(job, flavour, job.ranks)
        interpreter.choose(job.python, Path(job.workdir), environ)
        cluster = Cluster((job.on or "").partition(":")[2], self.here.environ)
        given = filter(None, self.here.environ.get("KUBECONFIG", "").split(":"))
        files = ":".join(str(Path(path).expanduser().absolute()) for path in given)
        where = ClusterSite(cluster.place, flavour if own.operator else "", files)
        if own.operator:
            from shanty.launch.targets.kubernetes_operator import manifests, try_out

            made = manifests(job, run.id, flavour)
            try_out(cluster, made)
            return KubernetesPlan(job, run, where, tuple(made))
        manifest = objects.job_of(job, run.id)
        answer = cluster.try_out(manifest)
        unknown = objects.dropped(json.loads(own.k8s_patch or "{}"), answer)
        if unknown:
            raise UsageError(
                f"the cluster does not know {', '.join(unknown)} of a Job",
                "its API server passes over these fields, or is too old for them",
                "look at the spelling in the manifest or --k8s-patch, or leave them out",
            )
        return KubernetesPlan(job, run, where, (manifest,))

    def examine(self, job: JobSpec) -> Report:
        """Find what is wrong with the cluster."""
        from shanty.launch.doctor import kubernetes

        return kubernetes.examine(job, self.here.home, self.here.environ, self.here.say)

    def sweep(self, job: JobSpec) -> list[str]:
        """Remove the Jobs of this machine's runs that are over."""
        from shanty.launch.doctor import kubernetes

        return kubernetes.sweep(job, self.here.home, self.here.environ)

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand; a run that nobody watches gets a watcher again."""
        return {run: self._status(run) for run in runs}

    def _status(self, run: RunDir) -> Status:
        from shanty.launch.targets.kubernetes_watcher import AWAY, is_watched

        watched = is_watched(run)  # before the rest is read, which nobody changes then
        status = run_status.read_status(run)
        away = _away(read_json(run.path / AWAY))
        waits = away is not None and time.time() < away["again"]
        if not watched and not waits and not (status.state.final and _is_removed(run)):
            watch(run, new=False)
        if away is None or status.state.final:
            return status
        if time.time() < away["since"] + _LOST:
            return replace(status, trouble=f"{away['what']}: {away['fix']}")
        failure = Failure(str(away["what"]), "", str(away["fix"]))
        return replace(status, state=State.LOST, failure=failure, exit_code=LostError.exit_code)

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, unless the run has ended."""
        if run_status.read_status(run).state.final:
            return Reply(True, "the run has ended")
        if not (site.read(run) or Site()).names_hosts:
            return _give_up(run)
        try:
            return self._ask(run, {"kind": "stop", "grace": grace})
        except ShantyError:
            if _give_up(run).ok:  # which deletes its pods
                return Reply(True, "")
            raise

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        if run_status.read_status(run).state.final:
            return Reply(False, "the run has ended")
        if not (site.read(run) or Site()).names_hosts:
            return Reply(False, "the run has no pods yet")
        return self._ask(run, {"kind": "stacks"})

    def signal(self, run: RunDir, number: int) -> Reply:
        """Send a signal to every rank that catches it."""
        if run_status.read_status(run).state.final or not (site.read(run) or Site()).names_hosts:
            return Reply(False, "the run has no ranks")
        return self._ask(run, {"kind": "warn", "signal": number})

    def _ask(self, run: RunDir, request: dict[str, Any]) -> Reply:
        """Put a request to the controller, in the run's first pod."""
        from shanty.launch.run_mirror import ask_run
        from shanty.launch.targets.kubernetes_watcher import use_kubeconfig

        use_kubeconfig(run)
        hosts = (site.read(run) or Site()).hosts
        if not hosts:
            raise NotFoundError(
                f"{run.site} is damaged, so the run's pods are not known",
                fix=f"kubectl delete job -l {objects.LABEL}={run.id}",
            )
        return Reply(**ask_run(run, hosts[0], request))


def ranks_of(command: Command) -> int | None:
    """How many ranks a command line of mpirun or horovodrun asks for; None where it does not say.

    Also None for an invalid line: its translation reports the mistake.
    """
    if not isinstance(command, Raw):
        return None
    try:
        words = shlex.split(command.argv[0]) if command.shell else list(command.argv)
        if not words:
            return None
        name = Path(words[0]).name
        if name == horovodrun.Wanted.program:
            return horovodrun.parse(words[1:]).ranks
        if not any(name in each.launcher_names for each in FLAVOURS.values()):
            return None
        programs = parser.parse(words[1:]).contexts
        counts = [one.number for each in programs for one in each.options if one.name == "n"]
    except (ShantyError, ValueError):
        return None
    return sum(counts) if len(counts) == len(programs) > 0 else None


def _away(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The note on a cluster that does not answer; None without a valid one."""
    if found is None:
        return None
    with contextlib.suppress(KeyError, TypeError, ValueError):
        times = {"since": float(found["since"]), "again": float(found.get("again", 0.0))}
        return {"what": str(found["what"]), "fix": str(found["fix"]), **times}
    return None


def _is_removed(run: RunDir) -> bool:
    """True where the cluster has nothing of the run, or the user wants to keep it."""
    cluster = ClusterSite.of(site.read(run) or Site())
    return cluster.deleted or not cluster.made or is_kept(run)


def watch(run: RunDir, *, new: bool = True) -> None:
    """Start the process that sees the run through, unless there is one.

    For a `new` run PrepareError where it does not start.
    """
    from shanty.launch.targets import kubernetes_watcher

    words = [sys.executable, "-m", kubernetes_watcher.__name__, str(run.path)]
    log = kubernetes_watcher.log_of(run)
    process = run_agents.start_survivor(words, log, None, os.environ)
    until = time.monotonic() + _STARTING
    while not kubernetes_watcher.is_watched(run) and time.monotonic() < until:
        if process.poll() is not None:
            break
        time.sleep(0.02)
    else:
        return
    if new and not run_status.read_status(run).state.final:
        said = log.read_text(errors="replace").strip()
        raise PrepareError("the process that watches the run does not start", said)


def _give_up(run: RunDir) -> Reply:
    """End a run by its watcher, where its controller has not begun or does not answer."""
    from shanty.launch.targets.kubernetes_watcher import ASKED_TO_STOP, RECORD, is_watched

    until = time.monotonic() + _STOPPING
    (run.path / ASKED_TO_STOP).touch()
    if is_watched(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill((read_json(run.path / RECORD) or {})["watcher"]["pid"], signal.SIGTERM)
    while time.monotonic() < until:
        if run_status.read_status(run).state.final and (_is_removed(run) or not is_watched(run)):
            return Reply(True, "")
        if not is_watched(run):
            watch(run, new=False)  # which finds that the run was given up
        time.sleep(0.05)
    return Reply(False, "the process that starts the run does not answer")
