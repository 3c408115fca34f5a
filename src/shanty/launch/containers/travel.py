"""Sends the images of this machine to hosts that lack them, a layer at a time.

A layer is named by its content, so it is read from the engine and compressed once for all hosts,
and a host is sent what neither its store nor an image of its engine has.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.cluster.content_store import KEPT, remembered
from shanty.launch.cluster.parallel import Say, Step, read_and_report
from shanty.launch.containers import images
from shanty.launch.containers.images import Ask
from shanty.runtime.containers.archive import layers_of, plain_digest
from shanty.runtime.containers.engines import LAYERED
from shanty.runtime.errors import ShantyError
from shanty.runtime.rpc import layers
from shanty.runtime.rpc.images import look, program_of
from shanty.runtime.rpc.store import home as store_home
from shanty.runtime.rpc.store import prune
from shanty.runtime.rundir import read_json, write_json
from shanty.runtime.spec import JobSpec

# The names that images have for kinds of processors, and those that kernels have.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "arm": "armv7l"}


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
    """Have these layers of an image in the store of this machine; the image's description."""
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

        `found` is what the host said of its engine. One for another kind of processor stays here.
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
            say(f"cannot be had there; {engine} pulls {image} here")
            try:
                asked = {"engine": engine, "program": program}
                images.pull(images.ask_here, self._job, image, asked, self._environ)
            except ShantyError:
                continue
            return find_here(image, engine)
        return None

    def _sent(self, own: LocalImage, ask: Ask, found: Mapping[str, Any], say: Say) -> Any:
        there = found["image"]
        if there is not None and _is_same(own, there):
            return there
        engine, program = found["engine"], found["program"]
        named = {"engine": engine, "program": program, "id": own.id}
        answer = ask("image-have", **named, layers=list(own.layers), content=own.content)
        if not _runs(own.arch, answer["machine"]["architecture"]):
            return None
        if answer["image"] is not None:
            return answer["image"]
        with self._lock:  # it is read once for all hosts
            config = keep_here(own, self._home, answer["missing"], say)
        send_layers(answer["missing"], own.name, ask, say)

        def told(said: Mapping[str, Any]) -> None:
            say(str(Step("", f"{engine} takes {own.name}", said["done"], said["total"])))

        return load(named, own.name, config, ask, told)

    # ----------------------------------------------------------------------- image files

    def file(self, image: str, ask: Ask, say: Say) -> str:
        """The path on the host of an image file of this machine, which is sent where it lacks it.

        One that is not here may be there. Folders are not sent.
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
            with path.open("rb") as file:
                data = read_and_report(file, step, lambda one: say(str(one)))
                ask("image-file-put", data=data, size=status.st_size, hash=name)
        return str(answer["path"])


def send_layers(digests: Sequence[str], title: str, ask: Ask, say: Say) -> None:
    """Send layers that the store here has to the store of a host."""
    sizes = {digest: Path(layers.path_of(digest)).stat().st_size for digest in digests}
    done, total = 0, sum(sizes.values())
    for digest, size in sizes.items():
        with Path(layers.path_of(digest)).open("rb") as file:
            step = Step("", f"layers of {title}", done, total)
            data = read_and_report(file, step, lambda one: say(str(one)))
            ask("layer-put", data=data, size=size, hash=digest)
        done += size


def load(
    named: Mapping[str, Any],
    title: str,
    config: bytes,
    ask: Ask,
    told: Any,
    *,
    rename: bool = False,
) -> dict[str, Any]:
    """Have an engine make the image of layers that its host has; what it is there."""
    assert layers_of(config)
    found: dict[str, Any] = ask(
        "image-load", data=config, progress=told, **named, name=title, rename=rename
    )["image"]
    return found


def _is_same(own: LocalImage, there: Mapping[str, Any]) -> bool:
    if plain_digest(own.id) == plain_digest(there["id"]):
        return True
    return own.content == there.get("content")


def _runs(architecture: str, machine: str) -> bool:
    return not architecture or machine_of(architecture) == machine


def machine_of(architecture: str) -> str:
    """The name that kernels have for what images call this kind of processor."""
    return _ARCHITECTURES.get(architecture, architecture)
