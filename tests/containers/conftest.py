"""Engines that are there already, as the environment says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Engine:
    """An engine that works here: `image` is a Debian with Python and nothing else."""

    name: str
    environ: Mapping[str, str]
    image: str

    def run(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `docker WORDS…`, or podman's like."""
        done = subprocess.run(
            [self.name, *map(str, words)],
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert not check or done.returncode == 0, done.stderr
        return done


def _engine(name: str, *variables: str) -> Engine:
    if shutil.which(name) is None or not all(os.environ.get(one) for one in variables):
        pytest.skip(f"there is no {name}, or not {' and '.join(variables)}")
    environ = {one: os.environ[one] for one in variables}
    return Engine(name, environ, os.environ.get("SHANTY_TEST_IMAGE", "engines/base:1"))


@pytest.fixture(scope="session")
def docker() -> Engine:
    """Docker, by a daemon that is there."""
    return _engine("docker", "DOCKER_HOST")


@pytest.fixture(scope="session")
def podman() -> Engine:
    """Podman as root, in a store of its own."""
    return _engine("podman", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF")
