"""Chooses the engine of a run on every host, and gets the image there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.cluster.parallel import Say
from shanty.runtime.containers.container import Container, Mount
from shanty.runtime.containers.engines import ENGINES
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.rpc.server import VERBS
from shanty.runtime.spec import JobSpec

Ask = Callable[..., dict[str, Any]]  # a verb of a host's RPC server, its arguments, and `data`
PASSWORD = "SHANTY_REGISTRY_PASSWORD"  # the environment variable that is read by default


@dataclass(frozen=True, slots=True)
class Image:
    """The image of a run as one host has it, and the container that is to be made of it.

    `id` tells two contents from each other. `container` has no name yet.
    """

    name: str
    id: str
    container: Container


def ask_here(verb: str, *, data: bytes = b"", **args: Any) -> dict[str, Any]:
    """A verb of the RPC server, done by this process for this machine."""
    from importlib import import_module
    from io import BytesIO

    module = import_module(f".{VERBS[verb]}", "shanty.runtime.rpc")
    do = getattr(module, verb.replace("-", "_"))
    found: dict[str, Any] = do(args, BytesIO(data), lambda _progress: None)
    return found


def get(ask: Ask, job: JobSpec, image: str, environ: Mapping[str, str], say: Say) -> Image:
    """Have the image on a host, by the engine to take there; it is pulled where it is missing.

    PrepareError when there is no engine that works, or the image cannot be had.
    """
    mounts = [list(mount) for mount in job.mounts]
    found = ask("container-engine", runtime=job.runtime, image=image, mounts=mounts)
    engine, program, there = found["engine"], found["program"], found["image"]
    if there is None:
        say(f"{ENGINES[engine].title} pulls {image}")
        asked = {"engine": engine, "program": program, "image": image, "user": job.registry_user}
        password = _password(job, environ) if job.registry_user else ""
        there = ask("image-pull", data=password.encode(), **asked)["image"]
    own = found["container"]
    container = Container(
        engine=engine,
        program=program,
        image=there["id"],
        name="",
        run="",
        user=own["user"],
        groups=tuple(own["groups"]),
        mounts=(*(Mount(*one) for one in own["mounts"]), *(Mount(*one) for one in job.mounts)),
        shared_memory=own["shared_memory"],
        gpus=_gpus(job, has_gpus=bool(found["gpus"])),
        rdma=own["rdma"],
        unpack=own["unpack"],
        variables=tuple(own["variables"]),
        environment=own["environment"],
    )
    return Image(image, there.get("state") or there["id"], container)


def _gpus(job: JobSpec, *, has_gpus: bool) -> str:
    """The GPUs that a container gets: those that were asked for, else all that there are."""
    if job.gpus is None:
        return "all" if has_gpus else ""
    return "" if job.gpus == "none" else job.gpus


def _password(job: JobSpec, environ: Mapping[str, str]) -> str:
    """The registry's password, from where the job says that it is."""
    source = job.registry_password or f"env:{PASSWORD}"
    kind, _, name = source.partition(":")
    if kind == "env":
        if name not in environ:
            raise UsageError(
                f"{name} is not set, and {job.registry_user} needs a password for the registry",
                fix=f"set {name}, or name a file: --registry-password FILE",
            )
        return environ[name]
    try:
        return Path(source).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"the password cannot be read from {source}", str(error)) from error
