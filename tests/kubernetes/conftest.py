"""A cluster for the tests of this folder (see `kube_runs`), and what is left of it after each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_runs import HELLO, UP, Kube, end

from runs import Shanty, flavour, mpi_folder, thin
from shanty.runtime.rundir import read_json

__all__ = ["flavour"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.mpi)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("kubernetes"))
            item.add_marker(pytest.mark.timeout(300))
    thin(items, Path(__file__).parent)


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[Kube]:
    """A cluster; afterwards nothing of the test's runs is in it, and nobody watches them."""
    names = ("SHANTY_TEST_KUBECONFIG", "SHANTY_TEST_KUBECONFIG_ADMIN", "SHANTY_TEST_KUBE_IMAGE")
    given = [os.environ.get(name, "") for name in names]
    if not all(given):
        pytest.skip(f"{names[given.index('')]} names no cluster")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / "mpi").symlink_to(mpi_folder())
    found = Kube(Path(given[0]), Path(given[1]), given[2], Shanty(home, work))
    (work / "hello.py").write_text(HELLO)
    (work / "up.py").write_text(UP)
    yield found
    for run in found.runs:
        if not (read_json(run.job) or {}).get("keep"):
            end(found, run)
