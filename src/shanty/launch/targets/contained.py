"""This machine, with the ranks in a container: a cluster of one host whose files are an image's."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from shanty.launch import interpreter, mpis
from shanty.launch.cluster import environment
from shanty.launch.cluster.content_store import KEPT
from shanty.launch.cluster.rpc_client import bundle
from shanty.launch.connections.base import LocalTransport
from shanty.launch.containers import images, inside
from shanty.launch.containers.images import Image
from shanty.launch.containers.inside import Contained, Inside
from shanty.launch.containers.options import IMAGE_MPI, refuse_without_python
from shanty.launch.host import Host
from shanty.launch.targets.base import Planned, Surroundings, plan_of, scratch_of
from shanty.launch.targets.local import Facts, node_of_this_machine, start
from shanty.runtime import platform
from shanty.runtime.containers.container import Container
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Node, Plan
from shanty.runtime.resolve import AttemptSettings, resolve
from shanty.runtime.rpc.store import mark_used, prune
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import JobSpec


@dataclass(frozen=True)
class ContainedPlan(Planned):
    """A job in a container here; `contained` is None until something is put into it.

    `key` is the name under which what was put there is remembered.
    """

    here: Surroundings
    facts: Facts
    image: Image
    inside: Inside | None
    contained: Contained | None
    plan: Plan
    key: str
    takes_long: ClassVar[bool] = True

    @property
    def ranks(self) -> int | None:
        """How many ranks there are to be; None where the user's own line says it."""
        return self.plan.attempt.ranks

    def render(self) -> str:
        """What would be run, for a person to read."""
        node, installation = self.plan.lead, self.plan.lead.installation
        title = FLAVOURS[installation.flavour].title
        origin = "the image's own" if self.job.mpi == IMAGE_MPI else "brought along"
        return "\n".join(
            [
                f"# MPI     {title} {installation.version}, {origin}",
                f"# image   {self.image.name}, by {self.image.container.engine}",
                f"# hosts   {node.name} ({node.slots} slots)",
                f"# ranks   {self.ranks or 'as the command says'}",
                f"cd {shlex.quote(self.job.workdir)}",
                shlex.join(self.plan.attempt.argv),
            ]
        )

    def _submit(self, stdin: int) -> None:
        plan = self.plan
        if self.contained is None:
            images.ask_here("containers-sweep")
            plan = _planned(self.job, self.run, self.here, self.facts, self._equip())
        if self.inside is not None:
            self.inside.leave()
        self.here.say("")
        flavour = FLAVOURS[plan.lead.installation.flavour]
        start(self.job, plan, self.run, flavour.hostfile(plan.attempt.layout.hosts), stdin)

    def _equip(self) -> Contained:
        here, job = self.here, self.job
        assert self.inside is not None  # else it is known what is there
        (contained,) = inside.equip(
            [self.inside],
            [self.facts.installation] if job.mpi == IMAGE_MPI else self.facts.installation,
            self.facts.python,
            job.environment,
            here.home,
            here.environ,
            here.say,
        )
        _remember(here, self.key, contained)
        return contained


def plan_here(job: JobSpec, run: RunDir, here: Surroundings) -> ContainedPlan:
    """Get the image and see what is in it; what the ranks need is put into it with `submit`."""
    name = os.uname().nodename
    wanted = job.master_image or job.image or ""
    ask = images.ask_here if here.brings else images.looking(images.ask_here, wanted)
    image = images.get(ask, job, wanted, here.environ, here.say)
    environ = {**here.environ, **job.env}
    python = interpreter.choose(job.python, Path(job.workdir), environ)
    own = job.mpi == IMAGE_MPI
    brought = None if own else mpis.select(job.mpi, here.home, environ)
    cores = platform.usable_cores()
    key = _key(job, here, image, brought, python)
    known = _known(here, key)
    entered = None
    if known is None:
        here.say(f"looks into {image.name}")
        folders = [str(here.home), job.workdir]
        connection = LocalTransport(Host(name))
        entered = inside.enter(name, connection, images.ask_here, image, folders, sys.executable)
        if own:
            (brought,) = inside.own_mpis([entered])
    installation = known.installation if known is not None else brought
    assert installation is not None
    facts = Facts(cores, installation, python)
    plan = _planned(job, run, here, facts, known)
    return ContainedPlan(job, run, here, facts, image, entered, known, plan, key)


def _planned(
    job: JobSpec, run: RunDir, here: Surroundings, facts: Facts, contained: Contained | None
) -> Plan:
    node: Node = node_of_this_machine(facts, job, run, scratch_of(run))
    if contained is not None:
        node = contained.node(node)
        refuse_without_python(job, [node])
    attempt = resolve(
        job,
        [node],
        AttemptSettings(
            run=run.id,
            scratch=scratch_of(run),
            scripted=True,
            log_limit=here.settings.log_limit,
            given=job.env,
        ),
    )
    return plan_of(job, run, here.settings, attempt)


# -------------------------------------------------------------- what is known of an image already


def _key(
    job: JobSpec, here: Surroundings, image: Image, brought: Installation | None, python: str
) -> str:
    """A name for all on which it depends what a container has."""
    packages = environment.local_environment(python, here.home)
    parts: list[Any] = [
        bundle().version,
        image.id,
        image.container._asdict(),
        job.workdir,
        job.environment,
        job.mpi,
        asdict(brought) if brought is not None else None,
        asdict(packages),
        sys.executable,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def _known(here: Surroundings, key: str) -> Contained | None:
    """What was put there for another run of that key, while all of it is still there."""
    mark_used(str(_file(here, key)))
    try:
        values = read_json(_file(here, key)) or {}
        found = Contained(
            **{
                **values,
                "container": Container.from_json(values["container"]),
                "installation": Installation(**values["installation"]),
            }
        )
    except (KeyError, TypeError):
        return None
    mpi4py = found.mpi4py.partition("|")[0]
    paths = [found.package, found.installation.prefix, found.python, found.agent_python, mpi4py]
    kept = [path for path in paths if Path(path).is_relative_to(here.home)]
    if not all(os.path.lexists(path) for path in kept):
        return None
    for path in kept:  # an item of the store that is used stays for another month
        mark_used(str(here.home.joinpath(*Path(path).relative_to(here.home).parts[:3])))
    return found


def _remember(here: Surroundings, key: str, contained: Contained) -> None:
    file = _file(here, key)
    file.parent.mkdir(parents=True, exist_ok=True)
    prune(str(file.parent), KEPT, "*.json")
    values = asdict(contained)
    values["container"] = contained.container._asdict()
    write_json(file, values)


def _file(here: Surroundings, key: str) -> Path:
    return here.home / "cache" / "containers" / f"{key}.json"
