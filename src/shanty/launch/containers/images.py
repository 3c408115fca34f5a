"""Chooses the engine of a run on every host, and gets the image there.

Hosts that lack an image of this machine are sent it, a layer at a time. A layer is named by its
content, so it is read from the engine and compressed once for all hosts, and a host is sent what
neither its store nor an image of its engine has.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.content.content_store import KEPT, remembered
from shanty.launch.transport.parallel import Say, Step, read_and_report
from shanty.runtime.containers.archive import plain_digest
from shanty.runtime.containers.container import ANY_GPUS, Container, Mount
from shanty.runtime.containers.engines import ENGINES, LAYERED, is_image_file
from shanty.runtime.errors import NotFoundError, PrepareError, ShantyError, UsageError
from shanty.runtime.rpc import layers
from shanty.runtime.rpc.images import look, program_of
from shanty.runtime.rpc.server import VERBS
from shanty.runtime.rpc.store import home as store_home
from shanty.runtime.rpc.store import prune
from shanty.runtime.rundir import read_json, write_json
from shanty.runtime.spec import REGISTRY_PASSWORD, JobSpec

Ask = Callable[..., dict[str, Any]]  # a verb of a host's RPC server, its arguments, and `data`
# The names that images have for kinds of processors, and those that kernels have.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "arm": "armv7l"}


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

    def only_look(verb: str, **args: Any) -> dict[str, Any]:
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

    return only_look


def get(
    ask: Ask,
    job: JobSpec,
    image: str,
    environ: Mapping[str, str],
    say: Say,
    source: ImagesHere | None = None,
) -> Image:
    """Get the image on a host, by the engine that the run takes there.

    An image of this machine, which `source` has, is sent where the host lacks it. Else the host
    pulls the image, or this machine where the host cannot. PrepareError where no engine works, or
    the image cannot be pulled.
    """
    mounts = [list(mount) for mount in job.mounts]
    is_file = is_image_file(image)
    name = source.file(image, ask, say) if source is not None and is_file else image
    found = ask("container-engine", runtime=job.runtime, image=name, mounts=mounts)
    engine, there = found["engine"], found["image"]
    if source is not None and not is_file:
        there = source.image(image, ask, found, say) or there
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
    source, user = job.registry_password or f"env:{REGISTRY_PASSWORD}", job.registry_user or ""
    password = password_from(source, user, environ) if user else ""
    pulled: dict[str, Any] = ask(
        "image-pull", data=password.encode(), **asked, user=job.registry_user
    )["image"]
    return pulled


def _gpus(job: JobSpec) -> str:
    """The GPUs that a container gets: those that were asked for, else all that there are."""
    if job.gpus is None:
        return ANY_GPUS
    return "" if job.gpus == "none" else job.gpus


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


# ------------------------------------------------------------------ the images of this machine


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image in an engine of this machine; `layers` are their digests, the lowest first."""

    name: str
    engine: str
    program: str
    id: str
    arch: str
    layers: tuple[str, ...]
    content: str
    size: int


def find_here(image: str, runtime: str | None = None) -> LocalImage | None:
    """The image in an engine of this machine, first in `runtime`, which may be none of these."""
    for engine in sorted(LAYERED, key=lambda name: name != runtime):
        program = program_of(engine)
        there = look(engine, program, image).image if program else None
        if program and there:
            values = (there["id"], there["arch"], tuple(there["layers"]), there["content"])
            return LocalImage(image, engine, program, *values, there["size"])
    return None


def keep_here(image: LocalImage, home: Path, wanted: Sequence[str], say: Say) -> bytes:
    """Keep these layers of an image in the store of this machine; returns its description."""
    file = home / "cache" / "images" / f"{plain_digest(image.id)}.json"
    text = (read_json(file) or {}).get("config")
    missing = [one for one in dict.fromkeys(wanted) if layers.kept(one) is None]
    if isinstance(text, str) and not missing:
        os.utime(file)
        return text.encode()
    for kind in ("layers", "images"):
        prune(str(Path(store_home(), "store", kind)), KEPT)
    prune(str(file.parent), KEPT)

    def told(said: Mapping[str, Any]) -> None:
        say(str(Step("", f"reads {image.name} from {image.engine}", said["done"], image.size)))

    config = layers.read_layers(image.engine, image.program, image.id, missing, told)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"config": config.decode()})
    return config


class ImagesHere:
    """The images of this machine, for the hosts of one run."""

    def __init__(self, job: JobSpec, home: Path, environ: Mapping[str, str]) -> None:
        self._job, self._home, self._environ = job, home, environ
        self._lock = threading.Lock()  # hosts are served by a thread each
        self._found: dict[str, LocalImage | None] = {}
        self._pulled: dict[str, LocalImage | None] = {}

    # ---------------------------------------------------------------------------- images

    def image(self, image: str, ask: Ask, found: Mapping[str, Any], say: Say) -> Any:
        """The image of this name as the host's engine has it now; None where it is not here.

        `found` is what the host said of its engine. An image for another processor is not sent.
        """
        with self._lock:
            if image not in self._found:
                self._found[image] = find_here(image, self._job.runtime)
            own = self._found[image]
        return None if own is None else self._sent(own, ask, found, say)

    def pulled(self, image: str, ask: Ask, found: Mapping[str, Any], say: Say) -> Any:
        """The same, pulled by an engine of this machine first; None where it cannot, either."""
        with self._lock:
            if image not in self._pulled:
                self._pulled[image] = self._pull(image, say)
            own = self._pulled[image]
        return None if own is None else self._sent(own, ask, found, say)

    def _pull(self, image: str, say: Say) -> LocalImage | None:
        for engine in sorted(LAYERED, key=lambda name: name != self._job.runtime):
            program = program_of(engine)
            if program is None:
                continue
            say(f"not available there; {engine} pulls {image} here")
            try:
                asked = {"engine": engine, "program": program}
                pull(ask_here, self._job, image, asked, self._environ)
            except ShantyError:
                continue
            return find_here(image, engine)
        return None

    def _sent(self, own: LocalImage, ask: Ask, found: Mapping[str, Any], say: Say) -> Any:
        there = found["image"]
        if there is not None:
            same_id = plain_digest(own.id) == plain_digest(there["id"])
            if same_id or own.content == there.get("content"):
                return there
        engine, program = found["engine"], found["program"]
        named = {"engine": engine, "program": program, "id": own.id}
        answer = ask("image-have", **named, layers=list(own.layers), content=own.content)
        if own.arch and machine_of(own.arch) != answer["machine"]["architecture"]:
            return None
        if answer["image"] is not None:
            return answer["image"]
        with self._lock:  # it is read once for all hosts
            config = keep_here(own, self._home, answer["missing"], say)
        self._send(answer["missing"], own.name, ask, say)

        def told(said: Mapping[str, Any]) -> None:
            say(str(Step("", f"{engine} takes {own.name}", said["done"], said["total"])))

        return ask("image-load", data=config, progress=told, **named, name=own.name)["image"]

    def _send(self, digests: Sequence[str], title: str, ask: Ask, say: Say) -> None:
        """Send layers that the store here has to the store of a host."""
        sizes = {digest: Path(layers.path_of(digest)).stat().st_size for digest in digests}
        done, total = 0, sum(sizes.values())
        for digest, size in sizes.items():
            with Path(layers.path_of(digest)).open("rb") as file:
                step = Step("", f"layers of {title}", done, total)
                data = read_and_report(file, step, lambda one: say(str(one)))
                ask("layer-put", data=data, size=size, hash=digest)
            done += size

    # ----------------------------------------------------------------------- image files

    def file(self, image: str, ask: Ask, say: Say) -> str:
        """The path on the host of an image file of this machine, which is sent where it lacks it.

        A file that is not here may be there. Folders are not sent.
        """
        path = Path(image)
        if not path.is_file():
            return image
        status = path.stat()
        state = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"

        def digest() -> str:
            say(f"reads {path}")
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        name = remembered(
            self._home / "cache" / "image-files.json",
            hashlib.sha256(state.encode()).hexdigest(),
            digest,
        )
        answer = ask("image-file-have", hash=name, length=status.st_size, path=str(path))
        if not answer["have"]:
            step = Step("", path.name, 0, status.st_size)
            named = {"kind": "images", "hash": name, "name": layers.IMAGE_FILE}
            with path.open("rb") as file:
                data = read_and_report(file, step, lambda one: say(str(one)))
                answer = ask("file-put", data=data, size=status.st_size, **named)
        return str(answer["path"])


def machine_of(architecture: str) -> str:
    """The name that kernels have for what images call this kind of processor."""
    return _ARCHITECTURES.get(architecture, architecture)
