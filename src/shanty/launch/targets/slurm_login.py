"""Slurm on a login node elsewhere: `--on slurm:USER@LOGIN`.

One connection of OpenSSH's is shared by all that goes there, so whoever has to type a code does
so once. The login node gets what the run needs into the content store in its user's home, which
the nodes share, and hands the job to Slurm. This machine then only watches: it may be closed.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import ClassVar

from shanty.launch import interpreter, mpis
from shanty.launch.cluster import connect, inventory
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.cluster.run_mirror import RunMirror
from shanty.launch.containers import inside
from shanty.launch.containers.inside import Inside
from shanty.launch.containers.options import IMAGE_MPI, refuse_without_python
from shanty.launch.host import Host
from shanty.launch.targets.base import Planned, Reply, Surroundings, scratch_of, with_inputs
from shanty.launch.targets.queued import waiting_plan
from shanty.launch.targets.ssh import SshTarget
from shanty.runtime.errors import PrepareError, ShantyError, UsageError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node
from shanty.runtime.resolve import shim_scripts
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.slurm import submit
from shanty.runtime.spec import JobSpec, Status

_TO_CHECK = 60.0  # seconds, of which Slurm's tools take the most
_TO_SUBMIT = 120.0  # seconds, of which Slurm's tools take the most
_UNUSED = 30  # days after which a login node gives up what no run has asked for


@dataclass(frozen=True)
class LoginPlan(Planned):
    """A job before it has nodes, and before anything is put on the login node."""

    target: SlurmLogin
    client: RpcClient
    installation: Installation
    python: str
    request: tuple[str, ...]
    insides: tuple[Inside, ...] = ()
    takes_long: ClassVar[bool] = True

    def render(self) -> str:
        """What is asked for, for a person to read."""
        title = FLAVOURS[self.installation.flavour].title
        return "\n".join(
            [
                f"# MPI     {title} {self.installation.version}, put on {self.client.host.name}",
                f"# hosts   as slurm on {self.client.host.name} gives them",
                f"# ranks   {self.ranks or 'as the nodes have slots'}",
                f"# sbatch {shlex.join(self.request)}",
                shlex.join(self.job.words()),
            ]
        )

    def drop(self) -> None:
        """Close the connection to the login node: it will not be submitted."""
        self.client.close(0.5)

    def _submit(self, stdin: int) -> None:
        """Prepare the login node and queue the run; its ranks read no standard input."""
        del stdin
        self.target.submit(self)


class SlurmLogin:
    """Runs that login nodes hand to Slurm and look after."""

    def __init__(self, here: Surroundings) -> None:
        self.here = here
        self._hosts = SshTarget(here)  # a login node is followed as a lead host is

    def plan(self, job: JobSpec, run: RunDir, login: str) -> LoginPlan:
        """Hold the job against what the cluster can give; nothing is put there yet."""
        found = self.entered(job, run, login)
        flavour = found.installation.flavour
        answer = found.client.ask("slurm-check", job=job.to_json(), mpi=flavour, patience=_TO_CHECK)
        return replace(found, request=tuple(answer.values["request"]))

    def entered(self, job: JobSpec, run: RunDir, login: str) -> LoginPlan:
        """Connect to the login node, and to a container there where the job has an image."""
        home, environ = self.here.home, {**self.here.environ, **job.env}
        hosts = inventory.recognised(inventory.resolve(login, home), home)
        if len(hosts) != 1:
            raise UsageError(
                f"--on slurm:{login} names {len(hosts)} hosts",
                "one login node hands the job to Slurm",
                "name one: --on slurm:USER@LOGIN",
            )
        installation = None if job.mpi == IMAGE_MPI else mpis.select(job.mpi, home, environ)
        python = interpreter.choose(job.python, Path(job.workdir), environ)
        (client,) = connect.connect(
            hosts,
            terminal=self.here.terminal,
            progress=lambda host, text: self.here.say(f"{host.name}: {text}"),
            groups=inventory.names(home),
        )
        insides: list[Inside] = []
        if job.image is not None:
            insides = inside.enter_all(
                job, [client], home, environ, self.here.say, brings=self.here.brings
            )
        installation = installation or inside.own_mpis(insides)[0]
        return LoginPlan(job, run, self, client, installation, python, (), tuple(insides))

    def submit(self, planned: LoginPlan) -> None:
        """Put on the login node what is missing there, and queue the run."""
        run, job, client = planned.run, planned.job, planned.client
        host = client.host
        queueing = False
        run.create()
        try:
            with storage_errors(run.path):
                job = with_inputs(job, run)
                write_json(run.job, job.to_json())
                write_json(run.site, {"target": "slurm", "hosts": [asdict(host)]})
                write_json(run.status, Status.new(job.ranks).to_json())
            client.ask("sweep-runs")
            client.ask("store-sweep", days=_UNUSED)
            node = self.prepared(planned)
            plan = waiting_plan(job, run, self.here.settings, node)
            write_json(run.plan, plan.to_json())
            shims = shim_scripts(node, raw=plan.raw, workers=False)
            queueing = True
            answer = client.ask(
                "slurm-submit",
                run=run.id,
                plan=plan.to_json(),
                job=job.to_json(),
                status=read_json(run.status),
                files={f"bin/{name}": [text, 0o755] for name, text in shims.items()},
                patience=_TO_SUBMIT,
            )
            site = {"target": "slurm", "hosts": [asdict(host)], "name": answer.values["name"]}
            write_json(run.site, site)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(run.path, ignore_errors=True)  # there never was a run
            if queueing:
                self._take_back(run, client)
            raise
        self.here.say("")
        self._hosts.follow(run, RunMirror(run, [host], client).start())

    def _take_back(self, run: RunDir, client: RpcClient) -> None:
        """End the job of a run that may have been queued; PrepareError where nobody can be told."""
        stop = {"kind": "stop", "grace": 0.0}
        try:
            client.ask("ask-run", run=run.id, request=stop, patience=10.0)
        except PrepareError as error:
            raise PrepareError(
                f"{client.host.name} may have queued the run, and cannot be told to take it back",
                error.what,
                "when it answers, look there with `squeue -u $USER -o '%i %k'`: "
                f"scancel what says {submit.comment_of(run)}",
            ) from error
        except ShantyError:
            pass  # it was not queued

    def prepared(self, planned: LoginPlan) -> Node:
        """The nodes as the login node was prepared for them: they share its home."""
        from shanty.launch.cluster.prepare import Prepared, place_workspace, prepare

        job, run, client, here = planned.job, planned.run, planned.client, self.here
        survey = client.ask("survey").values
        users = {client.host.name: f"{run.id}.0"}
        contained = None
        if planned.insides:
            placed = place_workspace([client], job, users, here.home, here.say)
            (contained,) = inside.equip(
                planned.insides,
                [planned.installation] if job.mpi == IMAGE_MPI else planned.installation,
                planned.python,
                job.environment,
                here.home,
                here.environ,
                here.say,
            )
            planned.insides[0].leave()
            there = Prepared(
                contained.installation, contained.python, placed[client.host.name],
                contained.mpi4py,
            )  # fmt: skip
        else:
            (there,) = prepare(
                [client], planned.installation, planned.python, job, users, here.home,
                here.environ, here.say,
            )  # fmt: skip
        for what, fix in client.notes:
            here.warn(f"{client.host.name}: {what} ({fix})")
        linux = survey["system"] == "Linux"
        node = Node(
            number=0,
            name=client.host.name,
            address=client.host.name,
            slots=1,
            cores=1,
            run_dir=str(PurePosixPath(client.home, "work", f"{run.id}.0")),
            workdir=there.workdir,
            python=there.python,
            agent_python=client.python,
            package=client.root,
            mpi=asdict(there.installation),
            search_path=survey["path"],
            mpi4py=there.mpi4py,
            segments=f"/dev/shm/{PurePosixPath(scratch_of(run)).name}" if linux else "",
            fabric=bool(survey["fabrics"]),
        )
        if contained is not None:
            node = contained.node(node)
            refuse_without_python(job, [node])
        return node

    def brought(self, job: JobSpec, run: RunDir, node: Node) -> Node:
        """The node with what the nodes would not see where it is, copied into this user's home."""
        from shanty.launch.cluster.prepare import place_workspace, prepare

        home, say = self.here.home, self.here.say
        (client,) = connect.connect([Host("localhost")], terminal=False)
        user = {"localhost": f"{run.id}.0"}
        try:
            home_of_user = self.here.environ.get("HOME", "/")
            if not submit.unseen(
                [node.python, node.agent_python, node.mpi["prefix"]], home_of_user
            ):
                placed = place_workspace([client], job, user, home, say)
                return node._replace(workdir=placed["localhost"], package=client.root)
            (there,) = prepare(
                [client], node.installation, node.python, job, user, home, self.here.environ, say
            )
        finally:
            client.close(0.5)
        return node._replace(
            workdir=there.workdir,
            python=there.python,
            agent_python=there.python,
            package=client.root,
            mpi=asdict(there.installation),
            mpi4py=there.mpi4py,
        )

    # ----------------------------------------------------------------------- following

    def describe(self, runs: Collection[RunDir]) -> Mapping[RunDir, Status]:
        """Where the runs stand, as far as their login nodes can be reached."""
        return self._hosts.describe(runs)

    def cancel(self, run: RunDir, grace: float) -> Reply:
        """End the run, or take it out of the queue."""
        return self._hosts.cancel(run, grace)

    def stacks(self, run: RunDir) -> Reply:
        """Ask for the stack of every rank."""
        return self._hosts.stacks(run)
