"""Small images for tests, each of layers with one file, and the engines that have them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from engines import Engine
from runs import wait_for
from shanty.launch.containers.layer import Entry, blocks
from shanty.runtime.containers import archive
from shanty.runtime.containers.archive import Layer
from sshd import free_port

USER, PASSWORD = "ann", "open-sesame"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KNOWN = f"{USER}:$2y$05$mESxaHrmkvo6LFHVxBDkZ.Pel4A.YiIFQmTpayPHRT44Pczd8NvuS\n"  # htpasswd -B
_REGISTRY = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: "{folder}/data"}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: test, path: "{folder}/users"}}}}
"""


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
        archive.write(config, layers, lambda one: [tars[one]], sink)
    engine.run("load", "-i", file)
    engine.run("tag", hashlib.sha256(config).hexdigest(), name)
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


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry that wants a password, with its files in `folder`; its HOST:PORT."""
    program = os.environ.get("SHANTY_TEST_REGISTRY") or shutil.which("docker-registry")
    if program is None:
        pytest.skip("there is no docker-registry (Debian, Ubuntu: apt-get install docker-registry)")
    port = free_port()
    (folder / "users").write_text(_KNOWN)
    (folder / "registry.yml").write_text(_REGISTRY.format(folder=folder, port=port))
    with (folder / "registry.log").open("wb") as log:
        words = [program, "serve", folder / "registry.yml"]
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(lambda: _answers(port), 30, "the registry does not come up")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        urlopen(f"http://127.0.0.1:{port}/v2/")
    except HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True
