"""How an engine is led to a registry that wants a password."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from shanty.runtime.rpc import images

# An engine that writes down how it was called.
ENGINE = """#!/bin/sh
[ "$1 $2" = "context inspect" ] && {{ echo "{host}"; exit; }}
[ "$1" = --config ] && config="$2/config.json" || config="$REGISTRY_AUTH_FILE"
cat "$config" > "{folder}/config"
echo "$DOCKER_HOST" > "{folder}/host"
"""
ROOTLESS = "unix:///run/user/1000/docker.sock"
DOCKER_HUB = {"https://index.docker.io/v1/", "docker.io"}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    path = tmp_path / "engine"
    path.write_text(ENGINE.format(folder=tmp_path, host=ROOTLESS))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("image", "registries"),
    [
        ("me/x", DOCKER_HUB),
        ("x", DOCKER_HUB),
        ("docker.io/me/x", DOCKER_HUB),
        ("index.docker.io/me/x:1", DOCKER_HUB),
        ("registry.example.org/me/x", {"registry.example.org"}),
        ("localhost:5000/x", {"localhost:5000"}),
        ("localhost/x", {"localhost"}),
    ],
)
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_login_is_that_of_the_image_s_registry(
    program: str, tmp_path: Path, engine: str, image: str, registries: set[str]
) -> None:
    images.push(engine, program, image, "me", "open sesame")
    found = json.loads((tmp_path / "config").read_text())["auths"]
    assert set(found) == registries
    for login in found.values():
        assert base64.b64decode(login["auth"]) == b"me:open sesame"


def test_a_login_leaves_docker_at_its_daemon(program: str, tmp_path: Path) -> None:
    """Which the user's own settings name, and those are not read then."""
    images.push("docker", program, "me/x", "me", "open sesame")
    assert (tmp_path / "host").read_text().strip() == ROOTLESS


def test_a_daemon_that_was_named_stays(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///mine")
    images.push("docker", program, "me/x", "me", "open sesame")
    assert (tmp_path / "host").read_text().strip() == "unix:///mine"
