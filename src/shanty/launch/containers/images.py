"""Chooses the engine of a run on every host, and gets the image there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shanty.launch.cluster.parallel import Say
from shanty.runtime.containers.container import ANY_GPUS, Container, Mount
from shanty.runtime.containers.engines import ENGINES, is_image_file
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.rpc.server import VERBS
from shanty.runtime.spec import REGISTRY_PASSWORD, JobSpec

Ask = Callable[..., dict[str, Any]]  # a verb of a host's RPC server, its arguments, and `data`


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


def looking(ask: Ask, image: str) -> Ask:
    """`ask`, which brings no image anywhere: NotFoundError where one would have to be brought."""

    def look(verb: str, **args: Any) -> dict[str, Any]:
        found = {} if verb == "image-pull" else ask(verb, **args)
        lacks = {"image-pull": True, "image-have": not found.get("image"),
                 "image-file-have": not found.get("have")}  # fmt: skip
        if lacks.get(verb):
            raise NotFoundError(
                f"the image {image} is not there yet",
                "--dry-run brings nothing, and what is run depends on what is in the image",
                "leave --dry-run out, or have the engine pull it before",
            )
        return found

    return look


class Source(Protocol):
    """What has images for a host that lacks them: this machine, where it is another one."""

    def file(self, image: str, ask: Ask, say: Say) -> str:
        """The path on the host of an image file, which is sent where it is missing there."""

    def image(self, image: str, ask: Ask, found: Mapping[str, Any], say: Say) -> Any:
        """The image as the host's engine has it now; None where there is none to send."""

    def pulled(self, image: str, ask: Ask, found: Mapping[str, Any], say: Say) -> Any:
        """The same, of what is pulled here first."""


def get(
    ask: Ask,
    job: JobSpec,
    image: str,
    environ: Mapping[str, str],
    say: Say,
    source: Source | None = None,
) -> Image:
    """Have the image on a host, by the engine to take there.

    The one of this machine is meant, where `source` has it: it is sent where the host lacks it.
    Else the host pulls, and where it cannot, this machine does. PrepareError when there is no
    engine that works, or the image cannot be had.
    """
    mounts = [list(mount) for mount in job.mounts]
    name = image
    if source is not None and is_image_file(image):
        name = source.file(image, ask, say)
    found = ask("container-engine", runtime=job.runtime, image=name, mounts=mounts)
    engine, there = found["engine"], found["image"]
    sent = None
    if source is not None and not is_image_file(image):
        sent = source.image(image, ask, found, say)
    there = sent or there
    if there is None:
        say(f"{ENGINES[engine].title} pulls {image}")
        try:
            there = pull(ask, job, image, found, environ)
        except PrepareError:
            there = source.pulled(image, ask, found, say) if source is not None else None
            if there is None:
                raise
    program = found["program"]
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
        gpus=_gpus(job),
        unpack=own["unpack"],
        variables=tuple(own["variables"]),
        environment=own["environment"],
    )
    return Image(image, there.get("state") or there["id"], container)


def pull(
    ask: Ask, job: JobSpec, image: str, found: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Have the engine that was `found` on a host pull the image."""
    asked = {"engine": found["engine"], "program": found["program"], "image": image}
    password = _password(job, environ) if job.registry_user else ""
    pulled: dict[str, Any] = ask(
        "image-pull", data=password.encode(), **asked, user=job.registry_user
    )["image"]
    return pulled


def _gpus(job: JobSpec) -> str:
    """The GPUs that a container gets: those that were asked for, else all that there are."""
    if job.gpus is None:
        return ANY_GPUS
    return "" if job.gpus == "none" else job.gpus


def _password(job: JobSpec, environ: Mapping[str, str]) -> str:
    """The registry's password, from where the job says that it is."""
    source = job.registry_password or f"env:{REGISTRY_PASSWORD}"
    return password_from(source, job.registry_user or "", environ)


def password_from(source: str, user: str, environ: Mapping[str, str]) -> str:
    """The password of `user` from a file, or from a variable: env:NAME."""
    kind, _, name = source.partition(":")
    if kind == "env":
        if name not in environ:
            raise UsageError(
                f"{name} is not set, and {user} needs a password for the registry",
                fix=f"set {name}, or name a file: --registry-password FILE",
            )
        return environ[name]
    try:
        return Path(source).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"the password cannot be read from {source}", str(error)) from error
