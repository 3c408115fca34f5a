"""Real runs in a home of their own, and a look around afterwards: nothing may be left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runs import Shanty, flavour, mpi_folder, thin, traces, vanish, wait_for

__all__ = ["flavour", "shanty"]


@pytest.fixture
def shanty(tmp_path: Path) -> Iterator[Shanty]:
    """The program in a fresh home; the test fails when a run leaves anything behind."""
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    if mpi_folder().exists():
        (home / "mpi").symlink_to(mpi_folder())
    before = traces()
    program = Shanty(home, folder)
    yield program
    try:
        wait_for(lambda: not program.alive(), 10, "processes of the run are left")
        vanish(traces() - before)
    except AssertionError:
        for entry in program.alive():
            os.kill(entry.pid, 9)
        program.sweep()  # the next test is not to find it
        raise


@pytest.fixture
def own_tmpdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other people's programs leave things in TMPDIR; its path is short, for their sockets."""
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share launches are for one worker of pytest-xdist."""
    thin(items, Path(__file__).parent)
    for item in items:
        here = isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent
        if here and "launches" in item.fixturenames:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            name = f"{item.path.stem} {parameters.get('flavour', '')}"
            item.add_marker(pytest.mark.xdist_group(name))
