"""Real runs in a home of their own, and a look around afterwards: nothing may be left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from launches import Launches
from rotation import thin
from runs import Shanty, flavour, mpi_folder, traces, vanish, wait_for

__all__ = ["flavour", "shanty"]
_MEMORY = Path("/sys/fs/cgroup/memory")  # control groups, version 1
_UNIFIED = Path("/sys/fs/cgroup")  # version 2


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


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    """The launches of worker scripts that the tests of a module share."""
    return Launches(tmp_path_factory.mktemp("launches"))


@pytest.fixture
def own_tmpdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other people's programs leave things in TMPDIR; its path is short, for their sockets."""
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def memory_limit() -> Iterator[Path]:
    """A control group with 300 MB; its file takes the pid of what shall be in it."""
    if (_MEMORY / "memory.limit_in_bytes").exists():
        group, limit = _MEMORY / f"shanty-test-{os.getpid()}", "memory.limit_in_bytes"
    elif "memory" in (_UNIFIED / "cgroup.subtree_control").read_text().split():
        group, limit = _UNIFIED / f"shanty-test-{os.getpid()}", "memory.max"
    else:
        pytest.skip("no control group for memory here")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error.strerror}")
    (group / limit).write_text(str(300 << 20))
    procs = group / "cgroup.procs"
    yield procs
    wait_for(lambda: not procs.read_text().strip(), 10, "the group is not empty")
    wait_for(lambda: _removed(group), 10, "the group stays")


def _removed(group: Path) -> bool:
    """Remove a control group; the kernel may need a moment after its last process."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share launches are for one worker of pytest-xdist."""
    thin(items, Path(__file__).parent, parameters=3)
    for item in items:
        here = isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent
        if here and "launches" in item.fixturenames:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            name = f"{item.path.stem} {parameters.get('flavour', '')}"
            item.add_marker(pytest.mark.xdist_group(name))
