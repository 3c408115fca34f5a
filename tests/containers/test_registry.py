"""A registry that wants a password: who has it gets the image, and keeps nothing of it."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import engines
from engines import PYTHON, ContainedShanty, Engine, long_only
from runs import wait_for

pytestmark = long_only
PASSWORD = "open-sesame"
# ann and that password, as `htpasswd -B` writes them
KNOWN = "ann:$2y$05$mESxaHrmkvo6LFHVxBDkZ.Pel4A.YiIFQmTpayPHRT44Pczd8NvuS\n"
CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: 127.0.0.1:{port}}}
auth: {{htpasswd: {{realm: tests, path: {folder}/users}}}}
"""


@pytest.fixture(scope="module")
def registry(docker: Engine) -> Iterator[str]:
    """The name of an image that is in a registry of our own, which has it from docker."""
    if not shutil.which("docker-registry"):
        pytest.skip("docker-registry is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with engines.disk() as folder:
        (folder / "users").write_text(KNOWN)
        (folder / "config.yml").write_text(CONFIG.format(folder=folder, port=port))
        words = ["docker-registry", "serve", f"{folder}/config.yml"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_for(lambda: answers(port), 30, "the registry")
            image = f"127.0.0.1:{port}/team/python:1"
            token = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
            (folder / "config.json").write_text(
                f'{{"auths": {{"127.0.0.1:{port}": {{"auth": "{token}"}}}}}}'
            )
            docker.run("tag", PYTHON, image)
            docker.run("--config", folder, "push", image)
            docker.run("rmi", image)
            yield image
        finally:
            server.terminate()
            server.wait(15)


def answers(port: int) -> bool:
    try:
        urlopen(f"http://127.0.0.1:{port}/v2/")
    except HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


@pytest.fixture
def plain(shanty: ContainedShanty, registry: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables by which the engine speaks to a registry without TLS; none has a password yet."""
    home = tmp_path / "home"
    home.mkdir()
    host = registry.partition("/")[0]
    conf = tmp_path / "registries.conf"
    conf.write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
    yield {
        "HOME": str(home),
        "CONTAINERS_REGISTRIES_CONF": str(conf),
        "APPTAINER_NOHTTPS": "1",
        "APPTAINER_CACHEDIR": str(tmp_path / "cache"),
    }
    if shanty.engine.name != "apptainer":
        shanty.engine.run("rmi", "--force", registry, check=False)


def test_the_password_gets_the_image_and_is_kept_nowhere(
    shanty: ContainedShanty, registry: str, plain: dict[str, str], tmp_path: Path
) -> None:
    words = ("--image", registry, "--runtime", shanty.engine.name, "--env", "none", "-n", "1")
    done = shanty("run", *words, "hostname", env=plain)
    assert done.returncode == 69, done.stdout
    assert "--registry-user" in done.stderr
    given = {**plain, "SHANTY_REGISTRY_PASSWORD": "wrong"}
    done = shanty("run", "--registry-user", "ann", *words, "hostname", env=given)
    assert done.returncode == 69, done.stdout
    assert "fix:" in done.stderr
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    login = ("--registry-user", "ann", "--registry-password", secret)
    done = shanty("run", *login, *words, "cat", "/etc/hostname", env=plain)
    assert done.returncode == 0, done.stderr
    secret.unlink()
    token = base64.b64encode(f"ann:{PASSWORD}".encode())
    for folder in (Path(plain["HOME"]), shanty.last.path, shanty.folder):
        for path in folder.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert PASSWORD.encode() not in content, path
                assert token not in content, path
    assert not list(Path("/dev/shm").glob("shanty-*/config.json"))
