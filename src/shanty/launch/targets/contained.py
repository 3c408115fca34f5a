"""This machine, with the ranks in a container: a cluster of one host whose files are an image's."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from shanty.launch.containers import images
from shanty.launch.containers.images import Image
from shanty.launch.containers.options import IMAGE_MPI, refuse_without_python
from shanty.launch.content import environment
from shanty.launch.content.content_store import KEPT
from shanty.launch.provision import containers
from shanty.launch.provision.containers import Inside
from shanty.launch.provision.node import Ready
from shanty.launch.provision.provision import Bring, provision, to_bring
from shanty.launch.provision.session import HostSession
from shanty.launch.targets.base import (
    Outline,
    Surroundings,
    in_workdir,
    mpi_head,
    plan_of,
    ranks_head,
    scratch_of,
)
from shanty.launch.targets.local import Facts, LocalPlan, node_of_this_machine, place_here, start
from shanty.launch.transport.connection import LocalTransport
from shanty.launch.transport.rpc_client import bundle
from shanty.runtime import platform
from shanty.runtime.containers.container import Container
from shanty.runtime.counted import counted
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.plan import Plan
from shanty.runtime.resolve import settled
from shanty.runtime.rpc.store import mark_used, prune
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec


@dataclass(frozen=True)
class ContainedPlan(LocalPlan):
    """A job in a container here; `known` is None until something is put into it.

    `key` is the name under which what was put there is remembered.
    """

    here: Surroundings
    facts: Facts
    bring: Bring
    image: Image
    inside: Inside | None
    known: Ready | None
    key: str
    takes_long: ClassVar[bool] = True

    def outline(self) -> Outline:
        """What would be run."""
        node = self.plan.lead
        where = "the image's own" if self.job.mpi == IMAGE_MPI else "brought along"
        heads = [
            mpi_head(node.installation, where),
            ("image", f"{self.image.name}, by {self.image.container.engine}"),
            ("hosts", f"{node.name} ({counted(node.slots, 'slot')})"),
            ranks_head(self.ranks, spares=self.job.spares),
        ]
        return Outline(heads, in_workdir(self.job, self.plan.attempt.argv))

    def _submit(self, stdin: int) -> None:
        plan, job, here = self.plan, self.job, self.here
        if self.known is None:
            images.ask_here("containers-sweep")
            session = HostSession(place_here(self.facts.cores, job), {}, None, self.inside)
            (ready,) = provision([session], job, self.bring, self.run.id, here)
            _remember(here, self.key, ready)
            plan = _planned(job, self.run, here, self.facts, ready)
        here.say("")
        start(job, plan, self.run, stdin)


def plan_here(job: JobSpec, run: RunDir, here: Surroundings) -> ContainedPlan:
    """Get the image and see what is in it; what the ranks need is put into it with `submit`."""
    name = os.uname().nodename
    wanted = job.master_image or job.image or ""
    ask = images.ask_here if here.brings else images.looking(images.ask_here, wanted)
    image = images.get(ask, job, wanted, here.environ, here.say)
    bring = to_bring(job, here)
    cores = platform.usable_cores()
    key = _key(job, here, image, bring)
    known = _known(here, key)
    entered = None
    if known is None:
        here.say(f"looks into {image.name}")
        folders = [str(here.home), job.workdir]
        connection = LocalTransport(Host(name))
        entered = containers.enter(
            name, connection, images.ask_here, image, folders, sys.executable
        )
        installation = bring.installation or containers.own_mpis([entered])[0]
    else:
        installation = known.installation
    facts = Facts(cores, installation, bring.python)
    plan = _planned(job, run, here, facts, known)
    return ContainedPlan(job, run, plan, here, facts, bring, image, entered, known, key)


def _planned(
    job: JobSpec, run: RunDir, here: Surroundings, facts: Facts, ready: Ready | None
) -> Plan:
    node = node_of_this_machine(facts, job, run, scratch_of(run), ready)
    if ready is not None:
        refuse_without_python(job, [ready.python])
    return settled(plan_of(job, run, here.settings, [node]), job, [node], here.environ)


# -------------------------------------------------------------- what is known of an image already


def _key(job: JobSpec, here: Surroundings, image: Image, bring: Bring) -> str:
    """A name for all on which it depends what a container has."""
    packages = environment.local_environment(bring.python, here.home)
    parts: list[Any] = [
        bundle().version,
        image.id,
        image.container._asdict(),
        job.workdir,
        job.packages,
        job.mpi,
        asdict(bring.installation) if bring.installation is not None else None,
        asdict(packages),
        sys.executable,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def _known(here: Surroundings, key: str) -> Ready | None:
    """What was put there for another run of that key, while all of it is still there."""
    mark_used(str(_file(here, key)))
    try:
        values = read_json(_file(here, key)) or {}
        found = Ready(
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


def _remember(here: Surroundings, key: str, ready: Ready) -> None:
    file = _file(here, key)
    file.parent.mkdir(parents=True, exist_ok=True)
    prune(str(file.parent), KEPT, "*.json")
    assert ready.container is not None
    installation = asdict(ready.installation)
    container = ready.container._asdict()
    write_json(file, {**ready._asdict(), "installation": installation, "container": container})


def _file(here: Surroundings, key: str) -> Path:
    return here.home / "cache" / "containers" / f"{key}.json"
