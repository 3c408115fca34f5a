"""Slurm on a login node elsewhere: `--on slurm:USER@LOGIN`.

All traffic shares one connection of OpenSSH, so a user who has to type a code does so once. The
login node gets what the run needs into the content store in its user's home, which the nodes share,
and hands the job to Slurm. This machine then only watches: it may be closed.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from shanty.launch.network.survey import chosen, connected
from shanty.launch.provision import containers
from shanty.launch.provision.containers import Inside
from shanty.launch.provision.node import HostPlace
from shanty.launch.provision.provision import Bring, place_workspace, provision, to_bring
from shanty.launch.provision.session import HostSession
from shanty.launch.run_mirror import RunMirror
from shanty.launch.targets.base import (
    Outline,
    Planned,
    Surroundings,
    begin_request,
    mpi_head,
    ranks_head,
    run_folder,
    scratch_of,
)
from shanty.launch.targets.queued import waiting_plan
from shanty.launch.targets.ssh import SshTarget
from shanty.launch.transport import connect
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime import site
from shanty.runtime.errors import PrepareError, ShantyError, UsageError
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.site import Host, Site
from shanty.runtime.slurm import submit
from shanty.runtime.spec import JobSpec

_TO_CHECK = 60.0  # seconds, of which Slurm's tools take the most
_TO_SUBMIT = 120.0  # seconds, of which Slurm's tools take the most


@dataclass(frozen=True)
class LoginPlan(Planned):
    """A job before it has nodes, and before anything is put on the login node."""

    target: SlurmLogin
    client: RpcClient
    installation: Installation
    bring: Bring
    request: tuple[str, ...]
    insides: tuple[Inside, ...] = ()
    takes_long: ClassVar[bool] = True

    def outline(self) -> Outline:
        """What is asked for."""
        name = self.client.host.name
        heads = [
            mpi_head(self.installation, f"put on {name}"),
            ("hosts", f"as slurm on {name} gives them"),
            ranks_head(self.ranks, "as the hosts have slots", self.job.spares),
            ("sbatch", shlex.join(self.request)),
        ]
        return Outline(heads, [shlex.join(self.job.words())])

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
        self.hosts = SshTarget(here)  # a login node is followed as a lead host is

    def plan(self, job: JobSpec, run: RunDir, login: str) -> LoginPlan:
        """Check what the job asks of the cluster; nothing is put there yet."""
        found = self.entered(job, run, login)
        flavour = found.installation.flavour
        answer = found.client.ask("slurm-check", job=job.to_json(), mpi=flavour, patience=_TO_CHECK)
        return replace(found, request=tuple(answer.values["request"]))

    def entered(self, job: JobSpec, run: RunDir, login: str) -> LoginPlan:
        """Connect to the login node, and to a container there where the job has an image."""
        here = self.here
        hosts = chosen(login, None, here.home)
        if len(hosts) != 1:
            raise UsageError(
                f"--on slurm:{login} names {len(hosts)} hosts",
                "one login node hands the job to Slurm",
                "name one: --on slurm:USER@LOGIN",
            )
        bring = to_bring(job, here)
        (client,) = connected(hosts, here.home, here.say, terminal=here.terminal)
        insides = containers.enter_all(job, [client], here)
        installation = bring.installation or containers.own_mpis(insides)[0]
        return LoginPlan(job, run, self, client, installation, bring, (), tuple(insides))

    def submit(self, planned: LoginPlan) -> None:
        """Put on the login node what is missing there, and queue the run."""
        run, client = planned.run, planned.client
        host = client.host
        where = Site("slurm", (host,))
        with run_folder(run, planned.job, planned.ranks, where) as job:
            plan = waiting_plan(job, run, self.here.settings, self.prepared(planned))
            write_json(run.plan, plan.to_json())
            try:
                begin = begin_request(plan, job, run)
                answer = client.ask("slurm-submit", **begin, patience=_TO_SUBMIT)
                site.write(run, where._replace(name=str(answer.values["name"])))
            except BaseException:  # Ctrl-C too
                self._take_back(run, client)
                raise
        self.here.say("")
        self.hosts.follow(run, RunMirror(run, [host], [client]).start())

    def _take_back(self, run: RunDir, client: RpcClient) -> None:
        """End the job of a run that may have been queued; PrepareError without an answer."""
        stop = {"kind": "stop", "grace": 0.0}
        try:
            client.ask("ask-run", run=run.id, request=stop, patience=10.0)
        except PrepareError as error:
            raise PrepareError(
                f"{client.host.name} may have queued the run, and cannot be asked to remove it",
                error.what,
                "when it answers, find the job there with `squeue -u $USER -o '%i %k'`: it says "
                f"{submit.comment_of(run)}, and scancel ends it",
            ) from error
        except ShantyError:
            pass  # it was not queued

    def prepared(self, planned: LoginPlan) -> Node:
        """The nodes as the login node was prepared for them: they share its home."""
        client, run = planned.client, planned.run
        place = HostPlace(client.host.name, client.host.name, slots=1, cores=1)
        entered = planned.insides[0] if planned.insides else None
        session = HostSession(place, client.ask("survey").values, client, entered)
        (ready,) = provision([session], planned.job, planned.bring, run.id, self.here)
        return session.node(0, ready, run.id, scratch_of(run))

    def brought(self, job: JobSpec, run: RunDir, node: Node) -> Node:
        """The node with what the nodes would not see where it is, copied into this user's home."""
        home = self.here.environ.get("HOME", "/")
        (client,) = connect.connect([Host("localhost")], terminal=False)
        try:
            if not submit.unseen([node.python, node.agent_python, node.mpi["prefix"]], home):
                placed = place_workspace([client], job, run.id, self.here.home, self.here.say)
                return node._replace(workdir=placed["localhost"], package=client.root)
            place = HostPlace("localhost", "localhost", node.slots, node.cores)
            session = HostSession(place, client.ask("survey").values, client)
            bring = Bring(node.installation, node.python)
            (ready,) = provision([session], job, bring, run.id, self.here)
        finally:
            client.close(0.5)
        return node._replace(
            workdir=ready.workdir,
            python=ready.python,
            agent_python=ready.python,
            package=ready.package,
            mpi=asdict(ready.installation),
            mpi4py=ready.mpi4py,
        )
