"""A registry that wants a password: who has it gets the image, and keeps nothing of it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

import engines
from engines import PYTHON, ContainedShanty, Engine, long_only
from own_images import PASSWORD, USER
from own_images import registry as serving

pytestmark = long_only
TOKEN = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@pytest.fixture(scope="module")
def registry(docker: Engine) -> Iterator[str]:
    """The name of an image that is in a registry of our own, which has it from docker."""
    with engines.disk() as folder, serving(folder) as host:
        image = f"{host}/team/python:1"
        (folder / "config.json").write_text(f'{{"auths": {{"{host}": {{"auth": "{TOKEN}"}}}}}}')
        docker.run("tag", PYTHON, image)
        docker.run("--config", folder, "push", image)
        docker.run("rmi", image)
        yield image


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
    words = ("--image", registry, "--runtime", shanty.engine.name, "--packages", "none", "-n", "1")
    done = shanty("run", *words, "hostname", env=plain)
    assert done.returncode == 69, done.stdout
    assert "--registry-user" in done.stderr
    given = {**plain, "SHANTY_REGISTRY_PASSWORD": "wrong"}
    done = shanty("run", "--registry-user", USER, *words, "hostname", env=given)
    assert done.returncode == 69, done.stdout
    assert "fix:" in done.stderr
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    login = ("--registry-user", USER, "--registry-password", secret)
    done = shanty("run", *login, *words, "cat", "/etc/hostname", env=plain)
    assert done.returncode == 0, done.stderr
    secret.unlink()
    for folder in (Path(plain["HOME"]), shanty.last.path, shanty.folder):
        for path in folder.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert PASSWORD.encode() not in content, path
                assert TOKEN.encode() not in content, path
    assert not list(Path("/dev/shm").glob("shanty-*/config.json"))
