"""Small images for tests, each of layers with one file, and the engines that have them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from shanty.launch.containers.layer import Entry, blocks
from shanty.runtime.containers import archive
from shanty.runtime.containers.archive import Layer

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Engine(Protocol):
    """What the fixtures `docker` and `podman` are."""

    name: str
    environ: Mapping[str, str]
    image: str

    def run(self, *words: str | Path, check: bool = True) -> Any: ...


def tar(content: bytes) -> bytes:
    """A layer with one file."""
    name = hashlib.sha256(content).hexdigest()[:8]
    return b"".join(blocks([Entry(f"/files/{name}", content)]))


def digest(content: bytes) -> str:
    """The digest of that layer."""
    return hashlib.sha256(tar(content)).hexdigest()


def put(engine: Engine, name: str, contents: Sequence[bytes], folder: Path) -> str:
    """Have an engine take an image of such layers; its id."""
    tars = {hashlib.sha256(each).hexdigest(): each for each in map(tar, contents)}
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES[os.uname().machine],
            "os": "linux",
            "created": "2024-02-03T04:05:06Z",
            "config": {"Cmd": ["/files"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in tars]},
        }
    ).encode()
    file = folder / "image.tar"
    with file.open("wb") as sink:
        layers = [Layer(one, len(data)) for one, data in tars.items()]
        archive.write(config, layers, lambda one: [tars[one]], sink, [name])
    engine.run("load", "-i", file)
    return identity(engine, name)


def identity(engine: Engine, name: str) -> str:
    """The id of an image, "" where the engine has none of that name."""
    done = engine.run("image", "inspect", "--format", "{{.Id}}", name, check=False)
    return done.stdout.strip().removeprefix("sha256:") if done.returncode == 0 else ""


def images(engine: Engine) -> set[str]:
    """The ids of all images."""
    listed = engine.run("image", "ls", "--quiet", "--no-trunc").stdout.split()
    return {one.removeprefix("sha256:") for one in listed}


@contextmanager
def cleared(*engines: Engine) -> Iterator[None]:
    """Remove what is in the engines after the block, and was not before."""
    before = [images(engine) for engine in engines]
    try:
        yield
    finally:
        for engine, known in zip(engines, before, strict=True):
            for one in images(engine) - known:
                engine.run("image", "rm", "--force", one, check=False)
