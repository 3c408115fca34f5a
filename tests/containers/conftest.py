"""Engines of our own on this machine, and a program that uses them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import engines
from engines import ContainedShanty, Engine
from rotation import thin
from runs import flavour, wait_for

__all__ = ["flavour"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them share one dockerd, so they are for one worker of pytest-xdist."""
    here = Path(__file__).parent
    thin(items, here, parameters=3)
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.xdist_group("containers"))


@pytest.fixture(scope="session")
def docker() -> Iterator[Engine]:
    """Docker, by a daemon of our own."""
    with engines.disk() as folder, engines.dockerd(folder / "docker") as found:
        folder.chmod(0o755)  # another user is to get to the socket
        found.load(engines.PYTHON)
        yield found


@pytest.fixture(scope="session")
def podman() -> Iterator[Engine]:
    """Podman as root."""
    with engines.disk() as folder, engines.podman(folder / "podman") as found:
        found.load(engines.PYTHON)
        yield found


@pytest.fixture(scope="session")
def apptainer() -> Engine:
    """Apptainer, whose image is a folder."""
    if not shutil.which("apptainer"):
        pytest.skip("apptainer is not installed (Debian 12 has no package of it)")
    return Engine("apptainer", {}, image=str(engines.root_of(engines.PYTHON)))


@pytest.fixture(params=("docker", "podman", "apptainer"))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def kept_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of shanty's for all tests: what is brought into containers is made once."""
    return tmp_path_factory.mktemp("kept") / "home"


@pytest.fixture
def shanty(engine: Engine, kept_home: Path, tmp_path: Path) -> Iterator[ContainedShanty]:
    """The program with an engine; at the end nothing is left of what it started."""
    folder = tmp_path / "a workspace"  # paths with spaces have to do
    folder.mkdir()
    program = ContainedShanty(kept_home, folder)
    program.engine = engine
    yield program
    wait_for(lambda: not engine.containers(), 15, f"containers are left: {engine.containers()}")
    assert not _run_folders(kept_home)


def _run_folders(home: Path) -> list[Path]:
    """The folders of its runs for sessions and shared memory that are there."""
    names = [f"shanty-{run.name[-11:]}" for run in (home / "runs").glob("*")]
    places = [Path(folder, name) for folder in ("/tmp", "/dev/shm") for name in names]
    return [place for place in places if place.exists()]
