"""Which engine a host has, and what its runs have left there."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc import containers
from shanty.runtime.rpc.containers import container_engine

# Engines that have no image and list one container.
PODMAN = """#!/bin/sh
case "$1" in
--version) echo "podman version 4.3.1" ;;
image) echo "Error: no such image $3" >&2; exit 125 ;;
ps) echo "{name} {home}/runs/x.1" ;;
esac
"""
AS_DOCKER = """#!/bin/sh
echo "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg." >&2
exec {folder}/podman "$@"
"""
DOCKER = """#!/bin/sh
case "$1" in
--version) echo "Docker version 24.0.5, build ced0996" ;;
image) echo "Error: No such image: $3" >&2; exit 1 ;;
esac
"""
NAME = f"shanty-test-{os.getpid()}"
Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Gives this host a program; it has no others."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    def install_one(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text.format(folder=tmp_path, name=NAME, home=tmp_path / "home"))
        path.chmod(0o755)
        return path

    return install_one


def chosen(runtime: str | None = None) -> str:
    ask = {"runtime": runtime, "image": "python:3.12"}
    return str(container_engine(ask, io.BytesIO(), lambda _: None)["engine"])


def test_docker_is_the_first(install: Install) -> None:
    install("podman", PODMAN)
    install("docker", DOCKER)
    assert chosen() == "docker"


def test_a_docker_that_is_podman_is_podman(install: Install) -> None:
    install("podman", PODMAN)
    install("docker", AS_DOCKER)
    assert chosen() == "podman"
    with pytest.raises(PrepareError, match="Docker not found") as raised:
        chosen("docker")
    assert "--runtime podman" in raised.value.fix


def test_a_docker_that_is_a_link_to_podman(install: Install, tmp_path: Path) -> None:
    install("podman", PODMAN.replace("podman version", "docker version"))
    (tmp_path / "docker").symlink_to("podman")
    assert chosen() == "podman"


@pytest.mark.parametrize("docker", [AS_DOCKER, ""], ids=["podman-docker", "podman"])
def test_a_container_whose_command_is_there_is_not_left(install: Install, docker: str) -> None:
    """Whatever name its engine was called by."""
    podman = install("podman", PODMAN)
    if docker:
        install("docker", docker)
    line = ["-c", 'read line; : "$@"', "podman", "run", "--name", NAME]
    shell, pipe = "/bin/sh", subprocess.PIPE
    with subprocess.Popen(["sh", *line], executable=shell, stdin=pipe) as other:
        assert containers.left() == []  # nor is podman asked, which no run has used
        containers.note_use("podman")
        left = [(NAME, [str(podman), "rm", "--force", "--time", "0", NAME])]
        assert containers.left() == left
        other.communicate(b"\n")
    with subprocess.Popen(["podman", *line], executable=shell, stdin=pipe) as held:
        assert containers.left() == []
        held.communicate(b"\n")


def test_an_image_file_where_there_is_no_apptainer(install: Install) -> None:
    install("docker", DOCKER)
    with pytest.raises(PrepareError, match="Apptainer not found") as raised:
        containers._choose(None, "/images/x.sif")
    assert "which only Apptainer takes" in raised.value.why
