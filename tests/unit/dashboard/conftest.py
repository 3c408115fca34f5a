"""A home with a few runs, and a server of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards import Client, Served, served


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of shanty's."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def server(home: Path) -> Iterator[Served]:
    """A server of that home, on loopback."""
    with served(home) as up:
        yield up


@pytest.fixture
def admin(server: Served) -> Client:
    """Somebody who may all."""
    return server.admin
